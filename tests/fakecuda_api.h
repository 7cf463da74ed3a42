/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's functions, on fakecuda.c's device; and the tests' own. Included by fakecuda.c alone. */
#ifndef FAKECUDA_API_H
#define FAKECUDA_API_H

/* ---- the tests' own ---- */

/* A device attribute from now on. */
EXPORT void fake_attribute(int attribute, int value)
{
    attributes[attribute] = value;
}

/* The n-th copy from now on arrives with a wrong bit. */
EXPORT void fake_corrupt(int n)
{
    atomic_store(&corrupt_in, n);
}

/* Streams run nothing more; 0: they go on. */
EXPORT void fake_freeze(int on)
{
    atomic_store(&frozen, on);
}

/* A wait does not end, whatever its word says; 0: those that are due end. */
EXPORT void fake_stick(int on)
{
    atomic_store(&stuck, on);
}

/* Streams are spread over so many queues in turn, and one that is parked holds up those of its own; 0: each has one to itself. */
EXPORT void fake_queues(int n)
{
    atomic_store(&queues, n);
}

EXPORT void fake_capture(CUstream s, int on)
{
    atomic_store(&s->capturing, on);
    atomic_fetch_add(&captures, on ? 1 : -1);
}

/* Captures that were spoilt, ever, by a call that none may be under way at, from a thread that is not relaxed about them. */
EXPORT int fake_captures_broken(void)
{
    return atomic_load(&captures_broken);
}

static CUresult spoils_captures(void)
{
    if (atomic_load(&captures) == 0 || capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    atomic_fetch_add(&captures_broken, 1);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

EXPORT int fake_parked(void)
{
    return atomic_load(&parked);
}

/* Calls that had to wait for a parked stream, ever. */
EXPORT uint64_t fake_held_up(void)
{
    return atomic_load(&held_up);
}

/* Regions registered now. */
EXPORT int fake_registered(void)
{
    int n = 0;

    for (int i = 0; i < PLACES; i++)
        n += places[i].base && !places[i].pinned;
    return n;
}

/* ---- the driver's ---- */

EXPORT CUresult cuInit(unsigned int flags)
{
    if (!attributes[HFC_HOST_REGISTER] && !attributes[0]) {
        const int on[] = {0, HFC_HOST_REGISTER, HFC_STREAM_MEM_OPS, HFC_HOST_POINTER, HFC_UNIFIED_ADDRESSING};

        for (size_t i = 0; i < sizeof(on) / sizeof(*on); i++)
            attributes[on[i]] = 1;
        /* For a process of its own, which nobody calls the fake_ functions in. */
        if (getenv("FAKECUDA_WITHOUT"))
            attributes[atoi(getenv("FAKECUDA_WITHOUT"))] = 0;
        if (getenv("FAKECUDA_CORRUPT"))
            corrupt_in = atoi(getenv("FAKECUDA_CORRUPT"));
        if (getenv("FAKECUDA_QUEUES"))
            queues = atoi(getenv("FAKECUDA_QUEUES"));
        stuck = getenv("FAKECUDA_STICK") != NULL;
    }
    return flags ? INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == INVALID_VALUE          ? "CUDA_ERROR_INVALID_VALUE"
            : error == CUDA_ERROR_INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
                                              : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "as it was told";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = 7;
    return ordinal == 0 ? CUDA_SUCCESS : INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    (void)device;
    strncpy(name, "stand-in", (size_t)bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    (void)device;
    *value = attributes[attribute];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device)
{
    (void)device;
    *ret = &context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *ret)
{
    *ret = current;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext c)
{
    current = c;
    return CUDA_SUCCESS;
}

static _Thread_local CUcontext before[8];
static _Thread_local int depth;

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext c)
{
    before[depth++] = current;
    current = c;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *ret)
{
    *ret = current;
    current = before[--depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = 7;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    int was = capture_mode;

    capture_mode = *mode;
    *mode = was;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamCreate(CUstream *ret, unsigned int flags)
{
    CUstream s = calloc(1, sizeof(*s));

    (void)flags;
    if (!current)
        return CUDA_ERROR_INVALID_CONTEXT;
    s->last = &s->first;
    s->number = atomic_fetch_add(&streams, 1) % STREAMS;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    *ret = s;
    return pthread_create(&s->thread, NULL, stream_main, s) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy_v2(CUstream s)
{
    CUresult r = enqueue(s, (struct op){.kind = END});

    if (r == CUDA_SUCCESS) {
        pthread_join(s->thread, NULL);
        free(s);
    }
    return r;
}

EXPORT CUresult cuStreamGetCtx(CUstream s, CUcontext *ret)
{
    *ret = s ? &context : NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream s, int *status)
{
    *status = atomic_load(&s->capturing);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamQuery(CUstream s)
{
    return atomic_load(&s->done) == atomic_load(&s->enqueued) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventCreate(CUevent *ret, unsigned int flags)
{
    (void)flags;
    *ret = calloc(1, sizeof(**ret));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent e, CUstream s)
{
    uint64_t number = atomic_fetch_add(&events, 1) + 1;

    atomic_store(&e->recorded, number);
    return enqueue(s, (struct op){.kind = EVENT, .event = e, .number = number});
}

EXPORT CUresult cuEventQuery(CUevent e)
{
    return atomic_load_explicit(&e->reached, memory_order_acquire) == atomic_load(&e->recorded) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventDestroy_v2(CUevent e)
{
    free(e);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *ret, size_t bytes)
{
    void *memory = malloc(bytes);

    if (!current || spoils_captures() != CUDA_SUCCESS) {
        free(memory);
        return current ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_INVALID_CONTEXT;
    }
    memset(memory, 0xA5, bytes);
    *ret = (uintptr_t)memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr memory)
{
    CUresult r = spoils_captures();

    if (r != CUDA_SUCCESS)
        return r;
    wait_for_release();
    free(POINTER(memory));
    return CUDA_SUCCESS;
}

#include "fakecuda_memory.h"

#endif
