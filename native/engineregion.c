/* SPDX-License-Identifier: Apache-2.0 */
/* A region on the engine's side: opened once, then one session after the other is on it. */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static int map_region(struct hfe_region *r, int fd, const char **ret_reason)
{
    struct hf_header h;
    int result;

    result = hf_region_check(fd, &h, ret_reason);
    if (result < 0)
        return result;
    result = hf_region_map(fd, &h, HF_SIDE_ENGINE, &r->map);
    if (result < 0) {
        *ret_reason = "the region cannot be mapped";
        return result;
    }
    r->lock_error = hf_region_lock(&r->map);
    /* A child that copies on write would take the pages from under the device, or write to the daemon's. */
    if (madvise(r->map.base, r->map.layout.bytes, MADV_DONTFORK) < 0) {
        *ret_reason = "the region cannot be kept from forked children";
        return -errno;
    }
    if (hf_word_load(&r->map, HF_WORD_CONSUMED) != hf_word_load(&r->map, HF_WORD_SUBMITTED) ||
        hf_word_load(&r->map, HF_WORD_GATHERED) != hf_word_load(&r->map, HF_WORD_SUBMITTED)) {
        *ret_reason = "the region is in use: not everything that was submitted is consumed";
        return -EBUSY;
    }
    return 0;
}

static int allocate(struct hfe_region *r, const char **ret_reason)
{
    const struct hf_geometry *g = &r->map.geometry;
    const struct hfe_stream *s = &r->stream;
    struct hf_ring_span span;
    int result;

    *ret_reason = "out of device memory for the prefill backlog";
    result = s->alloc(s->context, (uint64_t)g->max_requests * g->drafts * sizeof(int64_t), (void **)&r->legal);
    if (result < 0 || r->backlog_rows == 0)
        return result;
    return s->alloc(s->context, hfe_backlog_bytes(g, r->backlog_rows, &span), &r->memory);
}

/* Device memory goes back in stream order: copies of it may still be under way. */
static void release(struct hfe_region *r)
{
    const struct hfe_stream *s = &r->stream;
    /* What the device still has stays mapped, registered as it is: the pages must not be another file's under it. */
    bool held = r->kept && s->let_go(s->context, &r->map) < 0;

    if (r->legal)
        s->free(s->context, r->legal);
    if (r->memory)
        s->free(s->context, r->memory);
    if (!held)
        hf_region_unmap(&r->map);
    if (r->fd >= 0)
        close(r->fd);
    free(r);
}

int hfe_region_open(int fd, const struct hfe_stream *s, uint32_t backlog_rows, struct hfe_region **ret_region, const char **ret_reason)
{
    struct hfe_region *r;
    int result;

    *ret_reason = "backlog_rows must be at most 1048576";
    if (backlog_rows > 1048576)
        return -EINVAL;
    *ret_reason = "out of memory";
    r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->stream = *s;
    r->backlog_rows = backlog_rows;
    r->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (r->fd < 0) {
        *ret_reason = "the region's descriptor cannot be duplicated";
        result = -errno;
        goto fail;
    }
    result = map_region(r, r->fd, ret_reason);
    if (result < 0)
        goto fail;
    result = allocate(r, ret_reason);
    if (result < 0)
        goto fail;
    *ret_reason = "the stream cannot serve another region";
    result = s->keep(s->context, &r->map);
    if (result < 0)
        goto fail;
    r->kept = true;
    *ret_reason = NULL;
    *ret_region = r;
    return 0;
fail:
    release(r);
    return result;
}

int hfe_region_fd(const struct hfe_region *r)
{
    return r->fd;
}

int hfe_region_rest(const struct hfe_region *r, uint32_t *ret_base)
{
    uint32_t submitted = hf_word_load(&r->map, HF_WORD_SUBMITTED);

    if (atomic_load_explicit(&r->poisoned, memory_order_relaxed))
        return -EIO;
    /* Acquire: pairs with hfe_end. The watchdog is gone, and it saw the bracket clear before it went ("bracket, lost"). */
    if (atomic_load_explicit(&r->sessions, memory_order_acquire))
        return -EBUSY;
    if (hf_word_load(&r->map, HF_WORD_CONSUMED) != submitted || hf_word_load(&r->map, HF_WORD_GATHERED) != submitted)
        return -EBUSY;
    *ret_base = submitted;
    return 0;
}

int hfe_region_poisoned(const struct hfe_region *r)
{
    return (int)atomic_load_explicit(&r->poisoned, memory_order_relaxed);
}

void hfe_region_mark(struct hfe_region *r, uint32_t lost)
{
    /* Release: whoever adopts the region reads 0 behind everything that was before. */
    atomic_store_explicit(&r->map.engine->lost.value, lost, memory_order_release);
}

void hfe_region_status_of(const struct hfe_region *r, struct hfe_status *ret_status)
{
    *ret_status = (struct hfe_status){.lock_error = r->lock_error};
    hfe_status_words(&r->map, ret_status);
}

int hfe_region_close(struct hfe_region *r)
{
    if (atomic_load_explicit(&r->sessions, memory_order_acquire))
        return -EBUSY;
    release(r);
    return 0;
}

void hfe_region_forked(struct hfe_region *r)
{
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
}
