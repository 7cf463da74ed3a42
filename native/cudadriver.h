/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver, opened at run time: libcuda.so.1 through dlopen, so nothing of CUDA is needed to build this. Types and
 * numbers are those of the public driver API; every call goes through one table, where it is counted and where a test can
 * make it fail. Only an engine's process opens it.
 */
#ifndef CUDADRIVER_H
#define CUDADRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cffi:begin */
struct hfc_driver;
/* Opens the driver library (a name for dlopen) and initialises it. Returns 0 or -errno, and why in reason (bytes long). The
   library is never unloaded. */
int hfc_driver_open(const char *library, struct hfc_driver **ret_driver, char *reason, uint32_t bytes);
/* Only once no stream of it is left. */
void hfc_driver_close(struct hfc_driver *d);
int hfc_driver_version(struct hfc_driver *d); /* such as 13000; -errno */

/* Functions of the driver by number, from 0: "cuMemcpy2DAsync"; NULL behind the last. */
const char *hfc_function_name(uint32_t function);
/* Whether the library has it: some are newer than the oldest driver that serves. */
int hfc_function_there(const struct hfc_driver *d, uint32_t function);
/* How often it was called through this driver, by any thread. */
uint64_t hfc_calls(const struct hfc_driver *d, uint32_t function);
/* Puts another function of the same signature in its place, for tests; returns the one before. NULL: as if the library had none. */
void *hfc_replace(struct hfc_driver *d, uint32_t function, void *other);
/* Fault injection: the n-th call from now on of one function (-1: of all that enqueue something) returns the error, a CUresult,
   and does nothing (n 0: none does). onwards: so do all after it, until this is called again. */
void hfc_fail_nth(struct hfc_driver *d, int function, uint32_t n, int error, bool onwards);

/* The driver's name for a CUresult, and what it says of it: "CUDA_ERROR_INVALID_VALUE: invalid argument". Returns its length. */
int hfc_describe(struct hfc_driver *d, int result, char *text, uint32_t bytes);
/* What the last call of this driver that failed was, "" where none did: "cuMemHostRegister: CUDA_ERROR_...". */
int hfc_fault(struct hfc_driver *d, char *text, uint32_t bytes);

/* Devices. -errno where the driver says no. */
int hfc_device_count(struct hfc_driver *d);
int hfc_device_name(struct hfc_driver *d, int ordinal, char *text, uint32_t bytes);
int hfc_device_attribute(struct hfc_driver *d, int ordinal, int attribute, int *ret_value);
/* The ordinal of the device of this thread's context. */
int hfc_current_device(struct hfc_driver *d);
/* Makes the device's primary context, the one that torch uses, current in this thread; retained until the process ends. */
int hfc_use_primary(struct hfc_driver *d, int ordinal);
/* A stream that does not synchronise with the null stream, in this thread's context. */
int hfc_stream_create(struct hfc_driver *d, uint64_t *ret_handle);
int hfc_stream_destroy(struct hfc_driver *d, uint64_t handle);

/* Device attributes that matter here. */
#define HFC_HOST_REGISTER 99               /* HOST_REGISTER_SUPPORTED */
#define HFC_HOST_POINTER 91                /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
#define HFC_STREAM_MEM_OPS 122             /* CAN_USE_64_BIT_STREAM_MEM_OPS; here for the memory operations at all */
#define HFC_FLUSH_REMOTE_WRITES 98         /* CAN_FLUSH_REMOTE_WRITES */
#define HFC_UNIFIED_ADDRESSING 41
#define HFC_INTEGRATED 18
#define HFC_CAPABILITY_MAJOR 75
#define HFC_CAPABILITY_MINOR 76
/* cffi:end */

/* ---- the driver's types and numbers ---- */

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUarray_st *CUarray;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_CAPTURED_EVENT = 907,
};

enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 };
enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2 };
enum { CU_STREAM_LEGACY = 1, CU_STREAM_PER_THREAD = 2 }; /* handles */
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_MEMHOSTREGISTER_PORTABLE = 1, CU_MEMHOSTREGISTER_DEVICEMAP = 2 };
enum { CU_MEMHOSTALLOC_PORTABLE = 1 };
enum { CU_STREAM_WAIT_VALUE_GEQ = 0, CU_STREAM_WRITE_VALUE_DEFAULT = 0 };
enum { CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1, CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2 };

typedef struct {
    size_t srcXInBytes, srcY;
    unsigned int srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes, dstY;
    unsigned int dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes, Height;
} CUDA_MEMCPY2D;

/* Wait and write have the same form. */
typedef union {
    struct {
        unsigned int operation;
        CUdeviceptr address;
        uint64_t value; /* 32-bit operations use the lower half */
        unsigned int flags;
        CUdeviceptr alias;
    } value;
    uint64_t pad[6];
} CUstreamBatchMemOpParams;

_Static_assert(sizeof(CUDA_MEMCPY2D) == 128 && offsetof(CUDA_MEMCPY2D, dstXInBytes) == 56, "CUDA_MEMCPY2D as the driver has it");
_Static_assert(sizeof(CUstreamBatchMemOpParams) == 48, "CUstreamBatchMemOpParams as the driver has it");

/* Copies in one call, CUDA 12.8 and newer. */
typedef struct {
    int type; /* 0: to be found out from the pointer */
    int id;
} CUmemLocation;

typedef struct {
    int srcAccessOrder;
    CUmemLocation srcLocHint, dstLocHint;
    unsigned int flags;
} CUmemcpyAttributes;

typedef struct {
    int type;
    union {
        struct {
            CUdeviceptr ptr;
            size_t rowLength, layerHeight;
            CUmemLocation locHint;
        } ptr;
        struct {
            CUarray array;
            size_t x, y, z;
        } array;
    } op;
} CUmemcpy3DOperand;

typedef struct {
    CUmemcpy3DOperand src, dst;
    size_t width, height, depth;
    int srcAccessOrder;
    unsigned int flags;
} CUDA_MEMCPY3D_BATCH_OP;

_Static_assert(sizeof(CUmemcpyAttributes) == 24 && sizeof(CUDA_MEMCPY3D_BATCH_OP) == 112, "batched copies as the driver has them");

enum { CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1, CU_MEMCPY_OPERAND_TYPE_POINTER = 1 };

/* ---- the table ---- */

/* X(name, symbol, kind, arguments). R: every driver that serves has it. O: some have not. E: enqueues something, required.
   F: enqueues something, optional. */
#define HFC_FUNCTIONS(X)                                                                                               \
    X(cuInit, cuInit, R, (unsigned int flags))                                                                         \
    X(cuDriverGetVersion, cuDriverGetVersion, R, (int *version))                                                       \
    X(cuGetErrorName, cuGetErrorName, R, (CUresult error, const char **text))                                          \
    X(cuGetErrorString, cuGetErrorString, R, (CUresult error, const char **text))                                      \
    X(cuDeviceGetCount, cuDeviceGetCount, R, (int *count))                                                             \
    X(cuDeviceGet, cuDeviceGet, R, (CUdevice *device, int ordinal))                                                    \
    X(cuDeviceGetName, cuDeviceGetName, R, (char *name, int bytes, CUdevice device))                                   \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute, R, (int *value, int attribute, CUdevice device))                     \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, R, (CUcontext *context, CUdevice device))                    \
    X(cuCtxGetCurrent, cuCtxGetCurrent, R, (CUcontext *context))                                                       \
    X(cuCtxSetCurrent, cuCtxSetCurrent, R, (CUcontext context))                                                        \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, R, (CUcontext context))                                                   \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, R, (CUcontext *context))                                                    \
    X(cuCtxGetDevice, cuCtxGetDevice, R, (CUdevice *device))                                                           \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, R, (int *mode))                            \
    X(cuStreamCreate, cuStreamCreate, R, (CUstream *stream, unsigned int flags))                                       \
    X(cuStreamDestroy, cuStreamDestroy_v2, R, (CUstream stream))                                                       \
    X(cuStreamGetCtx, cuStreamGetCtx, R, (CUstream stream, CUcontext *context))                                        \
    X(cuStreamIsCapturing, cuStreamIsCapturing, R, (CUstream stream, int *status))                                     \
    X(cuStreamQuery, cuStreamQuery, R, (CUstream stream))                                                              \
    X(cuEventCreate, cuEventCreate, R, (CUevent *event, unsigned int flags))                                           \
    X(cuEventRecord, cuEventRecord, R, (CUevent event, CUstream stream))                                               \
    X(cuEventQuery, cuEventQuery, R, (CUevent event))                                                                  \
    X(cuEventDestroy, cuEventDestroy_v2, R, (CUevent event))                                                           \
    X(cuMemAlloc, cuMemAlloc_v2, R, (CUdeviceptr *memory, size_t bytes))                                               \
    X(cuMemFree, cuMemFree_v2, R, (CUdeviceptr memory))                                                                \
    X(cuMemHostAlloc, cuMemHostAlloc, R, (void **memory, size_t bytes, unsigned int flags))                            \
    X(cuMemFreeHost, cuMemFreeHost, R, (void *memory))                                                                 \
    X(cuMemHostRegister, cuMemHostRegister_v2, R, (void *memory, size_t bytes, unsigned int flags))                    \
    X(cuMemHostUnregister, cuMemHostUnregister, R, (void *memory))                                                     \
    X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, R, (CUdeviceptr *address, void *memory, unsigned int flags)) \
    X(cuMemsetD8Async, cuMemsetD8Async, R, (CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream))   \
    X(cuModuleLoadData, cuModuleLoadData, R, (CUmodule *module, const void *image))                                    \
    X(cuModuleUnload, cuModuleUnload, R, (CUmodule module))                                                            \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, E, (void *to, CUdeviceptr from, size_t bytes, CUstream stream))         \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, E, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))   \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, E, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))   \
    X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, E, (const CUDA_MEMCPY2D *copy, CUstream stream))                            \
    X(cuStreamWriteValue32, cuStreamWriteValue32_v2, E, (CUstream stream, CUdeviceptr word, uint32_t value, unsigned int flags)) \
    X(cuStreamWaitValue32, cuStreamWaitValue32_v2, E, (CUstream stream, CUdeviceptr word, uint32_t value, unsigned int flags)) \
    X(cuStreamBatchMemOp, cuStreamBatchMemOp_v2, F, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags)) \
    X(cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, F, (CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, \
        CUmemcpyAttributes *attributes, size_t *indices, size_t n_attributes, CUstream stream))                        \
    X(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_v2, F, (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream stream))

enum hfc_function {
#define HFC_ID(name, symbol, kind, arguments) HFC_##name,
    HFC_FUNCTIONS(HFC_ID)
#undef HFC_ID
    HFC_FUNCTION_MAX
};

struct hfc_driver {
    struct {
#define HFC_FIELD(name, symbol, kind, arguments) CUresult(*name) arguments;
        HFC_FUNCTIONS(HFC_FIELD)
#undef HFC_FIELD
    } table;
    void *library;
    _Atomic uint64_t calls[HFC_FUNCTION_MAX];
    _Atomic uint64_t fault; /* function in the upper half, CUresult in the lower; 0: none */
    /* fault injection: the engine thread's calls meet at most one writer */
    _Atomic uint32_t fail_in; /* 0: never */
    int fail_function, fail_error;
    bool fail_onwards;
};

/* Counts a call; not 0: it is not to be made, and returns this instead. */
CUresult hfc_injected(struct hfc_driver *d, enum hfc_function f);
static inline CUresult hfc_before(struct hfc_driver *d, enum hfc_function f)
{
    /* Relaxed: counts order nothing. */
    atomic_fetch_add_explicit(&d->calls[f], 1, memory_order_relaxed);
    return atomic_load_explicit(&d->fail_in, memory_order_relaxed) ? hfc_injected(d, f) : CUDA_SUCCESS;
}

/* Notes a failure for people. Returns the -errno for a CUresult, 0 for success: -ENOMEM, -EBUSY (a capturing stream), -ENOTSUP, else -EIO;
   never -EINVAL, which is a batch's own fault. */
int hfc_errno(struct hfc_driver *d, enum hfc_function f, CUresult result);

/* A call: its CUresult, or as 0 or -errno. */
#define HFC_RAW(d, name, ...) (hfc_before(d, HFC_##name) ?: (d)->table.name(__VA_ARGS__))
#define HFC_CALL(d, name, ...) hfc_errno(d, HFC_##name, HFC_RAW(d, name, __VA_ARGS__))

#endif
