/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine thread enqueues. Each function is one call of the driver, and nothing of it waits for the device. */
#include "cudainside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAP_NS 20000
#define SPIN_NS 50000
#define UNPINNED_LIMIT_NS UINT64_C(10000000000) /* a copy of memory that is not pinned waits in the driver: look before, for so long */

CUdeviceptr hfc_address(const struct hfc_stream *s, const void *word)
{
    uintptr_t at = (uintptr_t)word;

    for (int i = 0; i < HFC_REGIONS; i++) {
        const struct hfc_keep *k = &s->keeps[i];
        /* Acquire: pairs with hfc_keep_region. */
        uintptr_t base = atomic_load_explicit(&k->base, memory_order_acquire);

        if (base && at >= base && at - base < k->bytes)
            return k->registered ? k->device + (at - base) : 0;
    }
    return 0;
}

static CUdeviceptr device(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

static int copy_flat(struct hfc_stream *s, void *to, const void *from, uint64_t bytes, enum hfe_copy kind)
{
    struct hfc_driver *d = s->driver;

    switch (kind) {
    case HFE_COPY_TO_HOST:
        return HFC_CALL(d, cuMemcpyDtoHAsync, to, device(from), bytes, s->stream);
    case HFE_COPY_TO_DEVICE:
        return HFC_CALL(d, cuMemcpyHtoDAsync, device(to), from, bytes, s->stream);
    default:
        return HFC_CALL(d, cuMemcpyDtoDAsync, device(to), device(from), bytes, s->stream);
    }
}

static int copy_rows(struct hfc_stream *s, void *to, uint64_t to_pitch, const void *from, uint64_t from_pitch, uint64_t width,
                     uint64_t height, enum hfe_copy kind)
{
    CUDA_MEMCPY2D copy = {.srcPitch = from_pitch, .dstPitch = to_pitch, .WidthInBytes = width, .Height = height};

    if (kind == HFE_COPY_TO_DEVICE) {
        copy.srcMemoryType = CU_MEMORYTYPE_HOST;
        copy.srcHost = from;
    } else {
        copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = device(from);
    }
    if (kind == HFE_COPY_TO_HOST) {
        copy.dstMemoryType = CU_MEMORYTYPE_HOST;
        copy.dstHost = to;
    } else {
        copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.dstDevice = device(to);
    }
    return HFC_CALL(s->driver, cuMemcpy2DAsync, &copy, s->stream);
}

static int synchronize(void *context, uint64_t timeout_ns)
{
    struct hfc_stream *s = context;
    int r;

    r = hfc_copies_flush(s);
    if (r < 0)
        return r;
    r = HFC_CALL(s->driver, cuEventRecord, s->drained, s->stream);
    return r < 0 ? r : hfc_await(s, s->drained, timeout_ns);
}

static int copy2d(void *context, void *to, uint64_t to_pitch, const void *from, uint64_t from_pitch, uint64_t width,
                  uint64_t height, enum hfe_copy kind)
{
    struct hfc_stream *s = context;
    bool flat = height == 1 || (to_pitch == width && from_pitch == width);
    int r = 0;

    if (s->gather && kind == HFE_COPY_TO_HOST && hfc_copies_take(s, to, to_pitch, from, from_pitch, width, height))
        return 0;
    r = hfc_copies_flush(s);
    if (r < 0)
        return r;
    if (s->noted_only && kind != HFE_COPY_ON_DEVICE) {
        r = synchronize(s, UNPINNED_LIMIT_NS);
        if (r < 0)
            return r;
    }
    return flat ? copy_flat(s, to, from, width * height, kind) : copy_rows(s, to, to_pitch, from, from_pitch, width, height, kind);
}

/* CU_STREAM_WRITE_VALUE_DEFAULT: everything before is visible, to the system, to whoever sees the value ("rows, gathered"). */
static int write32(void *context, _Atomic uint32_t *word, uint32_t value)
{
    struct hfc_stream *s = context;
    CUdeviceptr address = hfc_address(s, word);
    int r;

    if (!address)
        return -EFAULT;
    r = hfc_copies_flush(s);
    return r < 0 ? r : HFC_CALL(s->driver, cuStreamWriteValue32, s->stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

/* GEQ is cyclic, as hf_past is. */
static int wait32(void *context, _Atomic uint32_t *word, uint32_t value)
{
    struct hfc_stream *s = context;
    CUdeviceptr address = hfc_address(s, word);
    int r;

    if (!address)
        return -EFAULT;
    r = hfc_copies_flush(s);
    return r < 0 ? r : HFC_CALL(s->driver, cuStreamWaitValue32, s->stream, address, value, CU_STREAM_WAIT_VALUE_GEQ);
}

static int write_wait32(void *context, _Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *until, uint32_t reached)
{
    struct hfc_stream *s = context;
    CUstreamBatchMemOpParams ops[2];
    CUdeviceptr write = hfc_address(s, word), wait = hfc_address(s, until);
    int r;

    if (!write || !wait)
        return -EFAULT;
    r = hfc_copies_flush(s);
    if (r < 0)
        return r;
    memset(ops, 0, sizeof(ops));
    ops[0].value.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[0].value.address = write;
    ops[0].value.value = value;
    ops[0].value.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    ops[1].value.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[1].value.address = wait;
    ops[1].value.value = reached;
    ops[1].value.flags = CU_STREAM_WAIT_VALUE_GEQ;
    return HFC_CALL(s->driver, cuStreamBatchMemOp, s->stream, 2, ops, 0);
}

/* A value written by a captured operation would be written again at every replay. */
static int check(void *context)
{
    struct hfc_stream *s = context;
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    int r = HFC_CALL(s->driver, cuStreamIsCapturing, s->stream, &status);

    return r < 0 ? r : status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : -EBUSY;
}

int hfc_await(struct hfc_stream *s, CUevent event, uint64_t timeout_ns)
{
    uint64_t start = hf_now_ns();

    for (;;) {
        CUresult result = HFC_RAW(s->driver, cuEventQuery, event);
        uint64_t waited;

        if (result != CUDA_ERROR_NOT_READY)
            return hfc_errno(s->driver, HFC_cuEventQuery, result);
        waited = hf_now_ns() - start;
        if (waited >= timeout_ns)
            return -ETIMEDOUT;
        if (waited >= SPIN_NS)
            hf_sleep_ns(NAP_NS);
    }
}

/* ---- markers ---- */

int hfc_marker(struct hfc_stream *s, uint64_t *ret_marker)
{
    CUevent event = s->markers[(s->marker + 1) % HFC_MARKERS];
    int r = hfc_copies_flush(s);

    if (r == 0)
        r = HFC_CALL(s->driver, cuEventRecord, event, s->stream);
    if (r == 0)
        *ret_marker = ++s->marker;
    return r;
}

/* The event of an old marker is a newer one's by now. */
static CUevent event_of(const struct hfc_stream *s, uint64_t marker)
{
    return s->markers[marker % HFC_MARKERS];
}

int hfc_reached(struct hfc_stream *s, uint64_t marker)
{
    CUresult result = HFC_RAW(s->driver, cuEventQuery, event_of(s, marker));

    return result == CUDA_ERROR_NOT_READY ? 0 : result == CUDA_SUCCESS ? 1 : hfc_errno(s->driver, HFC_cuEventQuery, result);
}

int hfc_wait(struct hfc_stream *s, uint64_t marker, uint64_t timeout_ns)
{
    return hfc_await(s, event_of(s, marker), timeout_ns);
}

/* ---- open and close ---- */

static int check_handle(struct hfc_driver *d, uint64_t handle, CUcontext *ret_context, const char **ret_reason)
{
    CUstream stream = (CUstream)(uintptr_t)handle;
    CUcontext theirs = NULL;
    int status = CU_STREAM_CAPTURE_STATUS_NONE, r;

    *ret_reason = "it is the legacy null stream, and while that is parked every blocking stream of the device stands still: run the "
                  "engine on a stream of its own (torch.cuda.Stream(), cp.cuda.Stream(non_blocking=True)) and hand that one over";
    if (handle == 0 || handle == CU_STREAM_LEGACY)
        return -EINVAL;
    *ret_reason = "it is the per-thread default stream, another stream in every thread: hand over a stream that was created";
    if (handle == CU_STREAM_PER_THREAD)
        return -EINVAL;
    *ret_reason = "no CUDA context is current in this thread: make one first (torch.cuda.init(), or use a device)";
    r = HFC_CALL(d, cuCtxGetCurrent, ret_context);
    if (r < 0 || !*ret_context)
        return r < 0 ? r : -ENOTCONN;
    *ret_reason = "the stream is being captured into a graph: hand it over before or after";
    r = HFC_CALL(d, cuStreamIsCapturing, stream, &status);
    if (r < 0 || status != CU_STREAM_CAPTURE_STATUS_NONE)
        return r < 0 && r != -EBUSY ? r : -EBUSY;
    *ret_reason = "it is a stream of another context than this thread's: make its device the current one first (torch.cuda.set_device)";
    r = HFC_CALL(d, cuStreamGetCtx, stream, &theirs);
    return r < 0 ? r : theirs == *ret_context ? 0 : -ENOTCONN;
}

static int make_events(struct hfc_stream *s)
{
    int r = HFC_CALL(s->driver, cuEventCreate, &s->side_done, CU_EVENT_DISABLE_TIMING);

    if (r == 0)
        r = HFC_CALL(s->driver, cuEventCreate, &s->drained, CU_EVENT_DISABLE_TIMING);
    for (int i = 0; i < HFC_MARKERS && r == 0; i++)
        r = HFC_CALL(s->driver, cuEventCreate, &s->markers[i], CU_EVENT_DISABLE_TIMING);
    return r;
}

static void discard(struct hfc_stream *s)
{
    struct hfc_driver *d = s->driver;

    /* Nobody to tell: what is not given back goes with the process. */
    for (int i = 0; i < HFC_MARKERS; i++)
        if (s->markers[i])
            (void)HFC_CALL(d, cuEventDestroy, s->markers[i]);
    if (s->drained)
        (void)HFC_CALL(d, cuEventDestroy, s->drained);
    if (s->side_done)
        (void)HFC_CALL(d, cuEventDestroy, s->side_done);
    if (s->side)
        (void)HFC_CALL(d, cuStreamDestroy, s->side);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int hfc_open(struct hfc_driver *d, uint64_t handle, struct hfc_stream **ret_stream, const char **ret_reason)
{
    CUcontext current = NULL;
    struct hfc_stream *s;
    int r = check_handle(d, handle, &current, ret_reason);

    if (r < 0)
        return r;
    *ret_reason = "out of memory";
    s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->driver = d;
    s->context = current;
    s->stream = (CUstream)(uintptr_t)handle;
    s->ops = (struct hfe_stream){.context = s, .check = check, .copy2d = copy2d, .write32 = write32, .wait32 = wait32,
                                 .write_wait32 = d->table.cuStreamBatchMemOp ? write_wait32 : NULL, .alloc = hfc_allocate,
                                 .free = hfc_give_back, .keep = hfc_keep_region, .let_go = hfc_let_go_region,
                                 .synchronize = synchronize};
    pthread_mutex_init(&s->lock, NULL);
    *ret_reason = "the driver gives no stream or events beside it";
    r = HFC_CALL(d, cuStreamCreate, &s->side, CU_STREAM_NON_BLOCKING);
    if (r == 0)
        r = make_events(s);
    if (r < 0) {
        discard(s);
        return r;
    }
    *ret_reason = NULL;
    *ret_stream = s;
    return 0;
}

static int give_all_back(struct hfc_stream *s, uint64_t timeout_ns)
{
    int r;

    for (int i = 0; i < HFC_REGIONS; i++)
        if (atomic_load_explicit(&s->keeps[i].base, memory_order_acquire))
            return -EBUSY;
    r = synchronize(s, timeout_ns);
    if (r < 0)
        return r == -ETIMEDOUT ? -EBUSY : r;
    while (s->freed) {
        struct hfc_memory *m = s->freed;

        s->freed = m->next;
        (void)HFC_CALL(s->driver, cuMemFree, m->memory); /* refused: it stays the device's loss */
        free(m);
    }
    return 0;
}

int hfc_close(struct hfc_stream *s, uint64_t timeout_ns)
{
    struct hfc_driver *d = s->driver;
    CUcontext ours;
    int r = HFC_CALL(d, cuCtxPushCurrent, s->context);

    if (r < 0)
        return r;
    r = give_all_back(s, timeout_ns);
    if (r == 0)
        discard(s);
    (void)HFC_CALL(d, cuCtxPopCurrent, &ours); /* what was pushed can be popped */
    return r;
}

const struct hfe_stream *hfc_ops(struct hfc_stream *s)
{
    return &s->ops;
}

/* ---- for self-test, tests and benchmarks ---- */

_Static_assert((int)HFC_TO_HOST == (int)HFE_COPY_TO_HOST && (int)HFC_ON_DEVICE == (int)HFE_COPY_ON_DEVICE, "kinds of copies");

int hfc_copy(struct hfc_stream *s, void *to, const void *from, uint64_t bytes, int kind)
{
    return copy2d(s, to, bytes, from, bytes, bytes, 1, (enum hfe_copy)kind);
}

int hfc_write_word(struct hfc_stream *s, void *word, uint32_t value)
{
    return HFC_CALL(s->driver, cuStreamWriteValue32, s->stream, device(word), value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

int hfc_wait_word(struct hfc_stream *s, void *word, uint32_t value)
{
    return HFC_CALL(s->driver, cuStreamWaitValue32, s->stream, device(word), value, CU_STREAM_WAIT_VALUE_GEQ);
}
