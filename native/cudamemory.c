/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a CUDA stream, from other threads than the engine's. Nothing here is enqueued to the engine's stream, and nothing is
 * unregistered or freed that it may still touch: freeing waits until the stream is closed, since the driver would hold up every
 * launch of the process meanwhile.
 */
#include "cudainside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define FILL_LIMIT_NS UINT64_C(5000000000)

int hfc_enter(struct hfc_stream *s, int *ret_mode)
{
    CUcontext ours;
    int r = HFC_CALL(s->driver, cuCtxPushCurrent, s->context);

    if (r < 0)
        return r;
    *ret_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    r = HFC_CALL(s->driver, cuThreadExchangeStreamCaptureMode, ret_mode);
    if (r < 0)
        (void)HFC_CALL(s->driver, cuCtxPopCurrent, &ours);
    return r;
}

void hfc_leave(struct hfc_driver *d, int mode)
{
    CUcontext ours;

    /* They were set just before, so they can be set back. */
    (void)HFC_CALL(d, cuThreadExchangeStreamCaptureMode, &mode);
    (void)HFC_CALL(d, cuCtxPopCurrent, &ours);
}

int hfc_use(struct hfc_stream *s)
{
    return HFC_CALL(s->driver, cuCtxSetCurrent, s->context);
}

/* ---- regions ---- */

static struct hfc_keep *free_place(struct hfc_stream *s)
{
    for (int i = 0; i < HFC_REGIONS; i++)
        if (!atomic_load_explicit(&s->keeps[i].base, memory_order_relaxed))
            return &s->keeps[i];
    return NULL;
}

static int register_region(struct hfc_stream *s, const struct hf_region *region, struct hfc_keep *place)
{
    struct hfc_driver *d = s->driver;
    int r;

    r = HFC_CALL(d, cuMemHostRegister, region->base, region->layout.bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (r < 0)
        return r;
    r = HFC_CALL(d, cuMemHostGetDevicePointer, &place->device, region->base, 0);
    if (r < 0)
        (void)HFC_CALL(d, cuMemHostUnregister, region->base); /* nothing has touched it; its map goes all the same */
    return r;
}

int hfc_keep_region(void *context, const struct hf_region *region)
{
    struct hfc_stream *s = context;
    struct hfc_keep *place;
    int mode, r = -ENOSPC;

    pthread_mutex_lock(&s->lock);
    place = free_place(s);
    if (!place)
        goto unlock;
    place->bytes = region->layout.bytes;
    place->registered = !s->noted_only;
    r = 0;
    if (place->registered) {
        r = hfc_enter(s, &mode);
        if (r < 0)
            goto unlock;
        r = register_region(s, region, place);
        hfc_leave(s->driver, mode);
    }
    if (r < 0)
        goto unlock;
    atomic_fetch_add_explicit(&s->kept, 1, memory_order_relaxed);
    /* Release: pairs with hfc_address. */
    atomic_store_explicit(&place->base, (uintptr_t)region->base, memory_order_release);
unlock:
    pthread_mutex_unlock(&s->lock);
    return r;
}

/* The session on it is ended: its last operation was consumed, so nothing that is enqueued touches the region. */
int hfc_let_go_region(void *context, const struct hf_region *region)
{
    struct hfc_stream *s = context;
    int mode, r = -ENOENT;

    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < HFC_REGIONS; i++) {
        struct hfc_keep *k = &s->keeps[i];

        if (atomic_load_explicit(&k->base, memory_order_relaxed) != (uintptr_t)region->base)
            continue;
        r = 0;
        if (k->registered) {
            r = hfc_enter(s, &mode);
            if (r < 0)
                break;
            r = HFC_CALL(s->driver, cuMemHostUnregister, region->base);
            hfc_leave(s->driver, mode);
        }
        if (r == 0)
            atomic_store_explicit(&k->base, 0, memory_order_release);
        break;
    }
    pthread_mutex_unlock(&s->lock);
    return r;
}

void hfc_unregistered(struct hfc_stream *s)
{
    s->noted_only = true;
}

int hfc_aliases(const struct hfc_stream *s)
{
    for (int i = 0; i < HFC_REGIONS; i++) {
        const struct hfc_keep *k = &s->keeps[i];
        uintptr_t base = atomic_load_explicit(&k->base, memory_order_acquire);

        if (base && k->registered && k->device != base)
            return 1;
    }
    return 0;
}

uint64_t hfc_kept(const struct hfc_stream *s)
{
    return atomic_load_explicit(&s->kept, memory_order_relaxed);
}

/* ---- device memory ---- */

/* On the side stream: the null stream would wait for the engine's. */
static int fill(struct hfc_stream *s, CUdeviceptr memory, uint64_t bytes)
{
    int r = HFC_CALL(s->driver, cuMemsetD8Async, memory, 0, bytes, s->side);

    if (r == 0)
        r = HFC_CALL(s->driver, cuEventRecord, s->side_done, s->side);
    return r < 0 ? r : hfc_await(s, s->side_done, FILL_LIMIT_NS);
}

int hfc_allocate(void *context, uint64_t bytes, void **ret_memory)
{
    struct hfc_stream *s = context;
    CUdeviceptr memory = 0;
    int mode, r;

    pthread_mutex_lock(&s->lock);
    r = hfc_enter(s, &mode);
    if (r < 0)
        goto unlock;
    r = HFC_CALL(s->driver, cuMemAlloc, &memory, bytes);
    if (r == 0) {
        r = fill(s, memory, bytes);
        if (r == 0)
            *ret_memory = (void *)(uintptr_t)memory;
        else if (r != -ETIMEDOUT) /* then the device may still write there */
            (void)HFC_CALL(s->driver, cuMemFree, memory);
    }
    hfc_leave(s->driver, mode);
unlock:
    pthread_mutex_unlock(&s->lock);
    return r;
}

void hfc_give_back(void *context, void *memory)
{
    struct hfc_stream *s = context;
    struct hfc_memory *m = malloc(sizeof(*m));

    if (!m)
        return; /* better lost than freed too early */
    pthread_mutex_lock(&s->lock);
    *m = (struct hfc_memory){.next = s->freed, .memory = (CUdeviceptr)(uintptr_t)memory};
    s->freed = m;
    pthread_mutex_unlock(&s->lock);
}

int hfc_alloc(struct hfc_stream *s, uint64_t bytes, void **ret_memory)
{
    return hfc_allocate(s, bytes, ret_memory);
}

void hfc_free(struct hfc_stream *s, void *memory)
{
    hfc_give_back(s, memory);
}

/* ---- for self-test, tests and benchmarks ---- */

int hfc_host_alloc(struct hfc_stream *s, uint64_t bytes, void **ret_memory)
{
    int mode, r = hfc_enter(s, &mode);

    if (r < 0)
        return r;
    r = HFC_CALL(s->driver, cuMemHostAlloc, ret_memory, bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (r == 0)
        for (uint64_t i = 0; i < bytes; i++)
            ((unsigned char *)*ret_memory)[i] = 0;
    hfc_leave(s->driver, mode);
    return r;
}

int hfc_host_free(struct hfc_stream *s, void *memory)
{
    int mode, r = hfc_enter(s, &mode);

    if (r < 0)
        return r;
    r = HFC_CALL(s->driver, cuMemFreeHost, memory);
    hfc_leave(s->driver, mode);
    return r;
}

int hfc_load_module(struct hfc_stream *s)
{
    /* Its name makes it a module that no cache has. */
    static const char form[] = ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry hf_fresh_%llx()\n{\n ret;\n}\n";
    char image[sizeof(form) + 20];
    CUmodule module;
    int mode, r;

    snprintf(image, sizeof(image), form, (unsigned long long)hf_now_ns());
    r = hfc_enter(s, &mode);
    if (r < 0)
        return r;
    r = HFC_CALL(s->driver, cuModuleLoadData, &module, image);
    if (r == 0)
        r = HFC_CALL(s->driver, cuModuleUnload, module);
    hfc_leave(s->driver, mode);
    return r;
}
