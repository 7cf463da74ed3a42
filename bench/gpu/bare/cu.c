/* SPDX-License-Identifier: Apache-2.0 */
#include "cu.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

void cu_check(const struct cu *c, CUresult result, const char *call, const char *file, int line)
{
    const char *name = NULL;

    if (result == CUDA_SUCCESS)
        return;
    if (c->cuGetErrorName)
        c->cuGetErrorName(result, &name);
    fprintf(stderr, "%s:%d: %s: %s (%d)\n", file, line, call, name ? name : "?", (int)result);
    _exit(1);
}

void cu_open(struct cu *c)
{
    const char *library = getenv("CU_LIBRARY");
    void *handle = dlopen(library ? library : "libcuda.so.1", RTLD_NOW);
    CUdevice device;

    if (!handle) {
        fprintf(stderr, "no CUDA driver: %s\n", dlerror());
        exit(2);
    }
#define CU_LOAD(name)                                                                                                  \
    *(void **)&c->name = dlsym(handle, CU_TEXT(name));                                                                 \
    if (!c->name)                                                                                                      \
        fprintf(stderr, "the driver has no %s\n", CU_TEXT(name));
    CU_FUNCTIONS(CU_LOAD)
#undef CU_LOAD
    CU_DO(c, cuInit, 0);
    CU_DO(c, cuDeviceGet, &device, 0);
    CU_DO(c, cuDevicePrimaryCtxRetain, &c->context, device);
    CU_DO(c, cuCtxSetCurrent, c->context);
}

CUstream cu_stream(const struct cu *c)
{
    CUstream stream;

    CU_DO(c, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    return stream;
}

void *cu_shared(size_t bytes)
{
    int fd = memfd_create("bench", MFD_CLOEXEC);
    void *memory;

    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
        goto fail;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED)
        goto fail;
    close(fd);
    return memory;
fail:
    perror("memfd");
    exit(1);
}

void cu_register(const struct cu *c, void *memory, size_t bytes)
{
    CU_DO(c, cuMemHostRegister, memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
}

/* One thread: waits that many cycles, then adds one to *counter. */
const char *cu_ptx(void)
{
    return ".version 7.0\n.target sm_70\n.address_size 64\n"
           ".visible .entry spin(.param .u64 counter, .param .u32 cycles)\n{\n"
           ".reg .pred %p; .reg .u32 %r<4>; .reg .u64 %a;\n"
           "ld.param.u64 %a, [counter]; ld.param.u32 %r0, [cycles];\n"
           "mov.u32 %r1, %clock;\n"
           "LOOP:\n"
           "mov.u32 %r2, %clock; sub.u32 %r3, %r2, %r1; setp.lt.u32 %p, %r3, %r0;\n"
           "@%p bra LOOP;\n"
           "red.global.add.u32 [%a], 1;\n"
           "ret;\n}\n";
}

CUfunction cu_kernel(const struct cu *c, const char *ptx, const char *name)
{
    CUfunction function;
    CUmodule module;

    CU_DO(c, cuModuleLoadData, &module, ptx);
    CU_DO(c, cuModuleGetFunction, &function, module, name);
    return function;
}

void cu_launch(const struct cu *c, CUfunction kernel, CUstream stream, CUdeviceptr counter, uint32_t cycles)
{
    void *arguments[] = {&counter, &cycles};

    CU_DO(c, cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}
