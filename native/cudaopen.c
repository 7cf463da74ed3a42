/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA stream from open to close: which streams are taken, and what is given back when. */
#include "cudainside.h"

#include <errno.h>
#include <stdlib.h>

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
    s->ops = hfc_operations(s);
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

    for (int i = 0; i < HFC_REGIONS; i++) /* acquire: pairs with hfc_let_go_region */
        if (atomic_load_explicit(&s->keeps[i].base, memory_order_acquire))
            return -EBUSY;
    r = s->ops.synchronize(s, timeout_ns);
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
    int mode, r = hfc_enter(s, &mode);

    if (r < 0)
        return r;
    r = give_all_back(s, timeout_ns);
    if (r == 0)
        discard(s);
    hfc_leave(d, mode);
    return r;
}
