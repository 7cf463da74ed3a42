/* SPDX-License-Identifier: Apache-2.0 */
/* A session from open to close. */
#include "engine.h"

#include "session.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

_Static_assert(HF_VERDICT_MAX <= 16 && HF_SKIP_MAX <= 16, "struct hfe_status holds 16 of each");

static const char *config_fault(const struct hfe_config *c)
{
    if (c->deadline_ns == 0)
        return "deadline_ns must not be 0";
    if (c->tick_ns < 100000 || c->tick_ns > c->deadline_ns)
        return "tick_ns must be from 100 us to the deadline";
    if (c->starved_ns == 0)
        return "starved_ns must not be 0";
    return NULL;
}

/* The counter goes on where it stood; nothing is zeroed, so that a late action of an older session never meets its round
   again. */
static int take_base(struct hfe_session *e, const char **ret_reason)
{
    const struct hf_region *r = &e->region;
    uint32_t base;
    int result = hfe_region_rest(e->owner, &base);

    if (result < 0) {
        *ret_reason = "the region is in use: not everything that was submitted is consumed";
        return result;
    }
    e->settled = base;
    atomic_store_explicit(&e->base, base, memory_order_relaxed);
    atomic_store_explicit(&e->attempted, base, memory_order_relaxed);
    hf_release(r, base);
    hfe_ring_init(&e->ring, r->geometry.ring_bytes, r->geometry.slots, base);
    return 0;
}

/* Everything but the watchdog. */
static void release(struct hfe_session *e)
{
    hfe_plan_done(&e->plan);
    hfe_backlog_done(&e->backlog);
    free(e);
}

int hfe_open(struct hfe_region *r, const struct hfe_config *c, struct hfe_session **ret_session, const char **ret_reason)
{
    struct hfe_session *e;
    int result;

    *ret_reason = config_fault(c);
    if (*ret_reason)
        return -EINVAL;
    *ret_reason = "out of memory";
    e = aligned_alloc(HF_LINE, (sizeof(*e) + HF_LINE - 1) / HF_LINE * HF_LINE);
    if (!e)
        return -ENOMEM;
    *e = (struct hfe_session){.owner = r, .region = r->map, .stream = r->stream, .config = *c, .lock_error = r->lock_error, .legal = r->legal};
    result = take_base(e, ret_reason);
    if (result < 0)
        goto fail;
    result = hfe_backlog_init(&e->backlog, &e->region.geometry, r->backlog_rows, r->memory);
    if (result < 0)
        goto fail;
    result = hfe_plan_init(&e->plan, &e->region.geometry, &e->ring, &e->backlog);
    if (result < 0)
        goto fail;
    *ret_reason = "the watchdog thread cannot be started";
    result = hfe_watchdog_start(e);
    if (result < 0)
        goto fail;
    atomic_store_explicit(&r->sessions, 1, memory_order_relaxed);
    *ret_reason = NULL;
    *ret_session = e;
    return 0;
fail:
    release(e);
    return result;
}

void hfe_give_up(struct hfe_session *e, int loss)
{
    uint32_t none = HF_LOSS_NONE;
    uint64_t never = 0;

    /* First: who sees the loss sees when ("bracket, lost" orders it). */
    (void)atomic_compare_exchange_strong_explicit(&e->lost_ns, &never, hf_now_ns(), memory_order_relaxed, memory_order_relaxed);
    /* seq_cst: "bracket, lost", mirror of hfe_submit. */
    if (!atomic_compare_exchange_strong_explicit(&e->lost, &none, (uint32_t)loss, memory_order_seq_cst, memory_order_acquire))
        return; /* the first reason stands */
    /* A daemon that was only stopped reads this when it goes on, and lets go. */
    atomic_store_explicit(&e->region.engine->lost.value, 1, memory_order_release);
    hfe_watchdog_wake(e);
    if (e->watchdog.loss >= 0)
        (void)eventfd_write(e->watchdog.loss, 1);
}

int hfe_ended(const struct hfe_session *e)
{
    /* Acquire: pairs with the end of watch. */
    return (int)atomic_load_explicit(&e->watchdog.ended, memory_order_acquire);
}

/* First as it is, for half the time: rounds in flight end with the daemon's verdict, or by their deadline. Then given up. */
static int wait_end(struct hfe_session *e, uint64_t timeout_ns)
{
    if (hfe_watchdog_join(e, timeout_ns / 2) == 0)
        return 0;
    hfe_give_up(e, HF_LOSS_CLOSED);
    return hfe_watchdog_join(e, timeout_ns - timeout_ns / 2) < 0 ? -EBUSY : 0;
}

static void take_no_more(struct hfe_session *e)
{
    /* seq_cst: "bracket, lost", mirror of hfe_submit. */
    atomic_store_explicit(&e->closing, 1, memory_order_seq_cst);
    hfe_watchdog_wake(e);
}

int hfe_leave(struct hfe_session *e, uint64_t timeout_ns)
{
    if (e->over || hfe_ended(e))
        return 0;
    take_no_more(e);
    return wait_end(e, timeout_ns); /* the end of a half-submitted round is the engine thread's, whose hfe_settle tries it */
}

int hfe_end(struct hfe_session *e, uint64_t timeout_ns)
{
    int r;

    if (e->over)
        return 0;
    if (!hfe_ended(e)) {
        take_no_more(e);
        if (hfe_fence_half(e, timeout_ns / 2) < 0)
            return -EBUSY;
        r = wait_end(e, timeout_ns);
        if (r < 0)
            return r;
    }
    hfe_watchdog_done(e);
    e->over = true;
    /* Release: pairs with hfe_region_rest. */
    atomic_store_explicit(&e->owner->sessions, 0, memory_order_release);
    return 0;
}

void hfe_free(struct hfe_session *e)
{
    if (e->over)
        release(e);
}

void hfe_forked(struct hfe_session *e)
{
    if (!e->over)
        hfe_watchdog_forked(e);
}

uint32_t hfe_word(const struct hfe_session *e, int id)
{
    return hf_word_load(&e->region, (enum hf_word_id)id);
}
