/* SPDX-License-Identifier: Apache-2.0 */
/* A session from open to close. */
#include "engine.h"

#include "session.h"

#include <errno.h>
#include <stdlib.h>

_Static_assert(HF_VERDICT_MAX <= 16 && HF_SKIP_MAX <= 16, "struct hfe_status holds 16 of each");

static const char *config_fault(const struct hfe_config *c)
{
    if (c->deadline_ns == 0)
        return "deadline_ns must not be 0";
    if (c->tick_ns < 100000 || c->tick_ns > c->deadline_ns)
        return "tick_ns must be from 100 us to the deadline";
    if (c->starved_ns == 0)
        return "starved_ns must not be 0";
    if (c->backlog_rows > 1048576)
        return "backlog_rows must be at most 1048576";
    return NULL;
}

static int map_region(struct hfe_session *e, int fd, const char **ret_reason)
{
    struct hf_header h;
    int r;

    r = hf_region_check(fd, &h, ret_reason);
    if (r < 0)
        return r;
    r = hf_region_map(fd, &h, HF_SIDE_ENGINE, &e->region);
    if (r < 0) {
        *ret_reason = "the region cannot be mapped";
        return r;
    }
    e->lock_error = hf_region_lock(&e->region);
    return 0;
}

/* The counter goes on where it stood; nothing is zeroed, so that a late action of an older session never meets its round
   again. */
static int take_base(struct hfe_session *e, const char **ret_reason)
{
    const struct hf_region *r = &e->region;
    uint32_t base = hf_word_load(r, HF_WORD_SUBMITTED);

    if (hf_word_load(r, HF_WORD_CONSUMED) != base || hf_word_load(r, HF_WORD_GATHERED) != base) {
        *ret_reason = "the region is in use: not everything that was submitted is consumed";
        return -EBUSY;
    }
    e->base = e->settled = base;
    atomic_store_explicit(&e->attempted, base, memory_order_relaxed);
    hf_release(r, base);
    atomic_store_explicit(&r->engine->lost.value, 0, memory_order_release);
    hfe_ring_init(&e->ring, r->geometry.ring_bytes, r->geometry.slots, base);
    return 0;
}

static int allocate(struct hfe_session *e, const char **ret_reason)
{
    const struct hf_geometry *g = &e->region.geometry;
    const struct hfe_stream *s = &e->stream;
    struct hf_ring_span span;
    int r;

    *ret_reason = "out of device memory for the prefill backlog";
    r = s->alloc(s->context, (uint64_t)g->max_requests * g->drafts * sizeof(int64_t), (void **)&e->legal);
    if (r < 0)
        return r;
    if (e->config.backlog_rows > 0) {
        r = s->alloc(s->context, hfe_backlog_bytes(g, e->config.backlog_rows, &span), &e->memory);
        if (r < 0)
            return r;
    }
    *ret_reason = "out of memory";
    r = hfe_backlog_init(&e->backlog, g, e->config.backlog_rows, e->memory);
    if (r < 0)
        return r;
    return hfe_plan_init(&e->plan, g, &e->ring, &e->backlog);
}

/* Everything but the watchdog. Device memory goes back in stream order: copies of it may still be under way. */
static void release(struct hfe_session *e)
{
    const struct hfe_stream *s = &e->stream;

    if (e->soft && e->region.base)
        hfs_detach(e->soft, &e->region);
    if (e->legal)
        s->free(s->context, e->legal);
    if (e->memory)
        s->free(s->context, e->memory);
    hfe_plan_done(&e->plan);
    hfe_backlog_done(&e->backlog);
    hf_region_unmap(&e->region);
    free(e);
}

static int open_session(int fd, const struct hfe_stream *s, struct hfs_stream *soft, const struct hfe_config *c,
                        struct hfe_session **ret_session, const char **ret_reason)
{
    struct hfe_session *e;
    int r;

    *ret_reason = config_fault(c);
    if (*ret_reason)
        return -EINVAL;
    *ret_reason = "out of memory";
    e = aligned_alloc(HF_LINE, (sizeof(*e) + HF_LINE - 1) / HF_LINE * HF_LINE);
    if (!e)
        return -ENOMEM;
    *e = (struct hfe_session){.stream = *s, .config = *c};
    r = map_region(e, fd, ret_reason);
    if (r < 0)
        goto fail;
    r = take_base(e, ret_reason);
    if (r < 0)
        goto fail;
    r = allocate(e, ret_reason);
    if (r < 0)
        goto fail;
    if (soft) {
        *ret_reason = "the soft stream cannot serve another region";
        r = hfs_attach(soft, &e->region);
        if (r < 0)
            goto fail;
        e->soft = soft;
    }
    *ret_reason = "the watchdog thread cannot be started";
    r = hfe_watchdog_start(e);
    if (r < 0)
        goto fail;
    *ret_reason = NULL;
    *ret_session = e;
    return 0;
fail:
    release(e);
    return r;
}

int hfe_open(int fd, const struct hfe_stream *s, const struct hfe_config *c, struct hfe_session **ret_session, const char **ret_reason)
{
    return open_session(fd, s, NULL, c, ret_session, ret_reason);
}

int hfe_open_soft(int fd, struct hfs_stream *s, const struct hfe_config *c, struct hfe_session **ret_session, const char **ret_reason)
{
    struct hfe_stream stream = hfs_as_stream(s);

    return open_session(fd, &stream, s, c, ret_session, ret_reason);
}

void hfe_give_up(struct hfe_session *e, int loss)
{
    uint32_t none = HF_LOSS_NONE;

    /* seq_cst: "bracket, lost", mirror of hfe_submit. */
    if (!atomic_compare_exchange_strong_explicit(&e->lost, &none, (uint32_t)loss, memory_order_seq_cst, memory_order_acquire))
        return; /* the first reason stands */
    atomic_store_explicit(&e->lost_ns, hf_now_ns(), memory_order_relaxed);
    /* A daemon that was only stopped reads this when it goes on, and lets go. */
    atomic_store_explicit(&e->region.engine->lost.value, 1, memory_order_release);
    hfe_watchdog_wake(e);
}

/* First as it is, for half the time: rounds in flight end with the daemon's verdict, or by their deadline. Then given up. */
int hfe_close(struct hfe_session *e, uint64_t timeout_ns, struct hfe_status *ret_last)
{
    int r;

    atomic_store_explicit(&e->closing, 1, memory_order_seq_cst);
    hfe_watchdog_wake(e);
    r = hfe_fence_half(e);
    if (r < 0)
        return -EBUSY;
    if (hfe_watchdog_join(e, timeout_ns / 2) < 0) {
        hfe_give_up(e, HF_LOSS_CLOSED);
        if (hfe_watchdog_join(e, timeout_ns - timeout_ns / 2) < 0)
            return -EBUSY;
    }
    hfe_watchdog_done(e);
    hfe_settle(e);
    if (ret_last)
        hfe_status_of(e, ret_last);
    release(e);
    return 0;
}

uint32_t hfe_word(const struct hfe_session *e, int id)
{
    return hf_word_load(&e->region, (enum hf_word_id)id);
}
