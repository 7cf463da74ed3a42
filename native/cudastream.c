/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine thread enqueues. Each function is one call of the driver, and nothing of it waits for the device. */
#include "cudainside.h"

#include <errno.h>
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

static int drained(void *context)
{
    struct hfc_stream *s = context;

    return hfc_await(s, s->drained, 0) == 0;
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

static int await_event(struct hfc_stream *s, CUevent event, uint64_t timeout_ns)
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

int hfc_await(struct hfc_stream *s, CUevent event, uint64_t timeout_ns)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED, r;

    /* A query is refused, and ends the capture, while another thread captures in the global mode; not in this one. */
    r = HFC_CALL(s->driver, cuThreadExchangeStreamCaptureMode, &mode);
    if (r < 0)
        return r;
    r = await_event(s, event, timeout_ns);
    /* It was set just before, so it can be set back. */
    (void)HFC_CALL(s->driver, cuThreadExchangeStreamCaptureMode, &mode);
    return r;
}

struct hfe_stream hfc_operations(struct hfc_stream *s)
{
    return (struct hfe_stream){
        .context = s,
        .check = check,
        .copy2d = copy2d,
        .write32 = write32,
        .wait32 = wait32,
        .write_wait32 = s->driver->table.cuStreamBatchMemOp ? write_wait32 : NULL,
        .alloc = hfc_allocate,
        .free = hfc_give_back,
        .keep = hfc_keep_region,
        .let_go = hfc_let_go_region,
        .synchronize = synchronize,
        .drained = drained,
    };
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
    int r = hfc_await(s, event_of(s, marker), 0);

    return r == 0 ? 1 : r == -ETIMEDOUT ? 0 : r;
}

int hfc_wait(struct hfc_stream *s, uint64_t marker, uint64_t timeout_ns)
{
    return hfc_await(s, event_of(s, marker), timeout_ns);
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
