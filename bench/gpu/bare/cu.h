/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the bare programs of the bench share: the driver through dlopen, words in a registered memfd, time. Nothing of the
 * product: this is what the product is measured against. A driver call that fails ends the program, and says which.
 */
#ifndef BENCH_CU_H
#define BENCH_CU_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CU_FUNCTIONS(X)                                                                                                \
    X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuDeviceGet) X(cuDeviceGetName) X(cuDevicePrimaryCtxRetain)    \
    X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize)                 \
    X(cuStreamQuery) X(cuStreamWriteValue32) X(cuStreamWaitValue32) X(cuStreamWaitValue64) X(cuStreamBatchMemOp)       \
    X(cuLaunchHostFunc) X(cuEventCreate) X(cuEventRecord) X(cuEventSynchronize) X(cuEventQuery) X(cuMemAlloc)          \
    X(cuMemFree) X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemcpyDtoHAsync) X(cuMemcpyHtoDAsync)                 \
    X(cuMemcpy2DAsync) X(cuMemcpyHtoD) X(cuMemsetD32Async) X(cuModuleLoadData) X(cuModuleGetFunction)                  \
    X(cuLibraryLoadData) X(cuLibraryGetKernel) X(cuLaunchKernel) X(cuStreamCreateWithPriority)                         \
    X(cuCtxGetStreamPriorityRange) X(cuGraphCreate) X(cuGraphAddBatchMemOpNode) X(cuGraphInstantiateWithFlags)         \
    X(cuGraphLaunch) CU_NEWER(X)

#if CUDA_VERSION >= 13000
#define CU_NEWER(X) X(cuMemcpyBatchAsync)
#else
#define CU_NEWER(X)
#endif

/* Through one more macro: cuda.h renames functions (cuMemFree is cuMemFree_v2), members and symbols alike. */
#define CU_MEMBER(name) __typeof__(name) *name;
#define CU_TEXT(name) CU_TEXT_OF(name)
#define CU_TEXT_OF(name) #name

struct cu {
    CU_FUNCTIONS(CU_MEMBER)
    CUcontext context;
};

#define CU_DO(c, name, ...) cu_check((c), (c)->name(__VA_ARGS__), #name, __FILE__, __LINE__)

void cu_check(const struct cu *c, CUresult result, const char *call, const char *file, int line);
/* Opens libcuda.so.1 (or the library CU_LIBRARY names) and makes device 0's primary context current in this thread. */
void cu_open(struct cu *c);
CUstream cu_stream(const struct cu *c);
/* A memfd of that size, mapped: to be shared with a child before it is registered. */
void *cu_shared(size_t bytes);
void cu_register(const struct cu *c, void *memory, size_t bytes);
static inline CUdeviceptr cu_address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory; /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
}
/* A kernel that keeps a stream busy for about so many clock cycles, and adds one to *counter. */
CUfunction cu_kernel(const struct cu *c, const char *ptx, const char *name);
void cu_launch(const struct cu *c, CUfunction kernel, CUstream stream, CUdeviceptr counter, uint32_t cycles);
const char *cu_ptx(void);

static inline uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline void sleep_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    nanosleep(&t, NULL);
}

struct word {
    _Alignas(128) _Atomic uint32_t value;
};

#endif
