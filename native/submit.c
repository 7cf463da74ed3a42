/* SPDX-License-Identifier: Apache-2.0 */
/* Submit: a planned step becomes CPU headers, verdict words and stream operations. Nothing here waits. */
#include "gather.h"

#include <errno.h>
#include <string.h>

static void write_slot(struct hfe_session *e, const struct hfe_planned *round, uint32_t t)
{
    struct hf_round *slot = hf_round_of(&e->region, t);

    *slot = (struct hf_round){
        .round = t,
        .flags = round->flags,
        .session = e->config.session,
        .n_requests = round->n_requests,
        .n_rows = round->n_rows,
        .ring_offset = round->ring_offset,
        .ring_bytes = round->ring_bytes,
        .submitted_ns = hf_now_ns(),
    };
    memcpy(hf_requests_of(slot), &e->plan.request[round->first_request], round->n_requests * sizeof(struct hf_request));
    if (!e->stream.stamp)
        *hf_gathered_ns_of(&e->region, t) = 0;
    /* Release: whoever finds the round open finds it by this store. */
    atomic_store_explicit(hf_verdict_of(&e->region, t), hf_verdict_pack(t, HF_OPEN), memory_order_release);
    atomic_store_explicit(&e->kind[t & (e->region.geometry.slots - 1)], (uint64_t)t << 32 | round->flags, memory_order_relaxed);
}

static int submit_round(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_planned *round)
{
    uint32_t t = atomic_load_explicit(&e->attempted, memory_order_relaxed) + 1;
    int r;

    write_slot(e, round, t);
    atomic_store_explicit(&e->attempted, t, memory_order_relaxed);
    /* Before the first stream operation: a full queue behind this very round can hold us up in the middle of it, and then
       the watchdog must already be ticking. */
    hfe_watchdog_wake(e);
    if (e->sync)
        return hfe_sync_round(e, b, round, t);
    r = hfe_gather_round(e, b, round, t);
    if (r < 0)
        return r;
    /* Published last: a round the daemon hears of is whole. */
    hf_doorbell_ring(&e->region, t);
    return 0;
}

/* Rounds that can be submitted now: a slot is free once the round S before is consumed and retired; and booked, since it
   may have become so only after hfe_settle has looked. */
static uint32_t free_slots(const struct hfe_session *e, uint32_t retired)
{
    const struct hf_region *r = &e->region;
    uint32_t attempted = atomic_load_explicit(&e->attempted, memory_order_relaxed);
    /* Acquire: the stream has read its reply before we write there ("reply copied, consumed"). */
    uint32_t consumed = atomic_load_explicit(&r->engine->consumed.value, memory_order_acquire);
    int32_t unconsumed = hf_past(attempted, consumed), unretired = hf_past(attempted, retired);
    int32_t taken = hf_past(attempted, e->settled);

    if (unconsumed > taken)
        taken = unconsumed;
    if (unretired > taken)
        taken = unretired;
    return taken >= 0 && (uint32_t)taken <= r->geometry.slots ? r->geometry.slots - (uint32_t)taken : 0;
}

static enum hf_skip refusal(struct hfe_session *e)
{
    /* seq_cst: "bracket, lost". The bracket is set, so whoever loses the session from here on waits for us. */
    if (atomic_load_explicit(&e->lost, memory_order_seq_cst) || atomic_load_explicit(&e->closing, memory_order_seq_cst))
        return HF_SKIP_NO_SESSION;
    switch (atomic_load_explicit(&e->region.daemon->phase.value, memory_order_acquire)) {
    case HF_PHASE_RUNNING:
        return HF_SKIP_NONE;
    case HF_PHASE_DRAINING:
        return HF_SKIP_DRAINING;
    case HF_PHASE_NONE:
    case HF_PHASE_GONE:
        return HF_SKIP_NO_SESSION;
    default:
        hfe_give_up(e, HF_LOSS_GARBAGE);
        return HF_SKIP_NO_SESSION;
    }
}

/* No round is retired that was not attempted, and none is attempted before the one S earlier is retired. */
static bool retired_can_be(const struct hfe_session *e, uint32_t retired)
{
    int32_t unretired = hf_past(atomic_load_explicit(&e->attempted, memory_order_relaxed), retired);

    return unretired >= 0 && (uint32_t)unretired <= e->region.geometry.slots;
}

static void plan_step(struct hfe_session *e, const struct hfe_batch *b)
{
    enum hf_skip skip = refusal(e);
    /* Once, for slots and ring: a round may take a slot only where the ring has let go of the slot's last piece.
       Acquire: the daemon has read its rows before we write there ("rows, retired"). */
    uint32_t retired = atomic_load_explicit(&e->region.daemon->retired.value, memory_order_acquire);

    if (skip == HF_SKIP_NONE && !retired_can_be(e, retired)) {
        hfe_give_up(e, HF_LOSS_GARBAGE);
        skip = HF_SKIP_NO_SESSION;
    }
    if (skip != HF_SKIP_NONE) {
        hfe_plan_refuse(&e->plan, b, skip);
        return;
    }
    hfe_ring_free(&e->ring, retired);
    if (!hfe_watchdog_ready(e, hf_now_ns()))
        skip = HF_SKIP_WATCHDOG;
    hfe_plan_make(&e->plan, b, free_slots(e, retired), skip);
}

/* In stream order: rounds, rows that make room in the backlog first, then rows that go there. */
static int enqueue_step(struct hfe_session *e, const struct hfe_batch *b)
{
    const struct hfe_plan *p = &e->plan;
    int r = 0;

    for (uint32_t i = 0; i < p->n_rounds && r == 0; i++)
        r = submit_round(e, b, &p->round[i]);
    for (uint32_t i = 0; i < p->n_deferrals && r == 0; i++)
        r = hfe_gather_deferral(e, b, &p->deferral[i]);
    if (r == 0 && !p->drafting)
        r = hfe_gather_legal(e, b);
    return r;
}

static void count_step(struct hfe_session *e)
{
    struct hf_stats *stats = e->region.stats;
    const struct hfe_plan *p = &e->plan;

    if (p->skip != HF_SKIP_NONE)
        hfe_count(&stats->skipped[p->skip], 1);
    hfe_count(&stats->rows_shipped, p->shipped);
    hfe_count(&stats->rows_deferred, p->deferred);
    hfe_count(&stats->rows_left_out, p->left_out);
}

static void write_ticket(const struct hfe_session *e, struct hfe_ticket *ticket)
{
    const struct hfe_plan *p = &e->plan;
    uint32_t newest = atomic_load_explicit(&e->attempted, memory_order_relaxed);

    *ticket = (struct hfe_ticket){
        .round = p->drafting ? newest : 0,
        .drafting = p->drafting,
        .skip = p->skip,
        .context_rounds = p->n_rounds - p->drafting,
        .first_round = newest - p->n_rounds + 1,
        .rows = p->shipped,
        .rows_deferred = e->backlog.waiting_rows,
    };
}

/* A half-submitted round is never consumed by itself. Where the stream still takes one write, that write says when it is
   past what it was given; where synchronous rounds are done because it takes none, the CPU does once it is. Until then the region
   keeps its watchdog and its map. */
int hfe_fence_half(struct hfe_session *e, uint64_t timeout_ns)
{
    _Atomic uint32_t *consumed = &e->region.engine->consumed.value;
    uint32_t attempted = atomic_load_explicit(&e->attempted, memory_order_relaxed);
    int r;

    if (!e->half || e->fenced)
        return 0;
    r = e->stream.write32(e->stream.context, consumed, attempted);
    if (r < 0 && e->waits) {
        r = e->stream.synchronize(e->stream.context, timeout_ns);
        e->marked = r == -ETIMEDOUT;
        /* Release: the reply is read before its slot can be another round's ("reply copied, consumed"). */
        if (r == 0)
            atomic_store_explicit(consumed, attempted, memory_order_release);
    }
    e->fenced = r == 0;
    return r;
}

static void fail_step(struct hfe_session *e, const struct hfe_batch *b, int error, struct hfe_ticket *ticket)
{
    e->half = true;
    e->waits = e->sync;
    atomic_store_explicit(&e->owner->poisoned, 1, memory_order_relaxed);
    hfe_give_up(e, HF_LOSS_SUBMIT);
    /* Where these fail too, hfe_settle and hfe_end try the fence again, and drafts_out keeps the legal ids it held. A stream that was
       waited for in vain is not waited for once more here. */
    (void)hfe_fence_half(e, error == -ETIMEDOUT ? 0 : e->config.stream_limit_ns);
    (void)hfe_gather_legal(e, b);
    *ticket = (struct hfe_ticket){.skip = HF_SKIP_NO_SESSION};
}

int hfe_submit(struct hfe_session *e, const struct hfe_batch *b, struct hfe_ticket *ret_ticket)
{
    int r;

    if (!hfe_plan_accepts(&e->plan, b))
        return -EINVAL;
    if (e->stream.check) {
        r = e->stream.check(e->stream.context);
        if (r < 0)
            return r;
    }
    /* seq_cst: "bracket, lost". Bracket, then the loss flag; the watchdog reads them the other way round. */
    atomic_store_explicit(&e->bracket, 1, memory_order_seq_cst);
    hfe_settle_inside(e);
    plan_step(e, b);
    r = enqueue_step(e, b);
    if (r < 0) {
        fail_step(e, b, r, ret_ticket);
        /* These say that nothing happened, and only before the bracket: what a driver's error is mapped to must not. */
        if (r == -EINVAL || r == -EBUSY)
            r = -EIO;
    } else {
        count_step(e);
        write_ticket(e, ret_ticket);
    }
    /* Release: attempted is seen by a watchdog that sees the bracket clear. */
    atomic_store_explicit(&e->bracket, 0, memory_order_release);
    return r;
}

int hfe_flush(struct hfe_session *e, struct hfe_ticket *ret_ticket)
{
    const struct hfe_batch nothing = {0};

    return hfe_submit(e, &nothing, ret_ticket);
}
