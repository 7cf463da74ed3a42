/* SPDX-License-Identifier: Apache-2.0 */
/* What became of a round: its verdict, its drafts, its record; the books. */
#include "session.h"

#include <errno.h>
#include <string.h>

#define BASE_BEHIND (1 << 30) /* rounds; half the counter away "before" and "behind" change places */

static uint32_t submitted_of(const struct hfe_session *e)
{
    return atomic_load_explicit(&e->region.engine->submitted.value, memory_order_acquire);
}

static bool is_ours(const struct hfe_session *e, uint32_t round)
{
    /* Relaxed: it is moved far behind every round that is asked for, so an old one serves as well. */
    return hf_past(round, atomic_load_explicit(&e->base, memory_order_relaxed)) > 0 && hf_past(submitted_of(e), round) >= 0;
}

int hfe_verdict(const struct hfe_session *e, uint32_t round)
{
    return is_ours(e, round) ? hfe_verdict_taken(hf_verdict_load(&e->region, round)) : -ESTALE;
}

int hfe_consumed(const struct hfe_session *e, uint32_t round)
{
    /* Acquire: pairs with the stream's write; the drafts are in their place ("reply copied, consumed"). */
    uint32_t consumed = atomic_load_explicit(&e->region.engine->consumed.value, memory_order_acquire);

    return is_ours(e, round) && hf_past(consumed, round) >= 0;
}

int hfe_round_table(const struct hfe_session *e, uint32_t round, struct hf_round *ret_round, struct hf_request *ret_requests)
{
    struct hf_round *slot = hf_round_of(&e->region, round);

    if (!is_ours(e, round) || slot->round != round)
        return -ESTALE;
    *ret_round = *slot;
    memcpy(ret_requests, hf_requests_of(slot), slot->n_requests * sizeof(*ret_requests));
    return 0;
}

int hfe_drafts(const struct hfe_session *e, uint32_t round, int64_t *ids, uint32_t capacity)
{
    const struct hf_region *r = &e->region;
    const struct hf_round *slot = hf_round_of(r, round);
    uint32_t n;

    if (!is_ours(e, round) || slot->round != round || (slot->flags & HF_ROUND_CONTEXT_ONLY))
        return -ESTALE;
    if (!hfe_consumed(e, round))
        return -EAGAIN;
    n = slot->n_requests * r->geometry.drafts;
    if (n > capacity)
        return -ENOBUFS;
    memcpy(ids, hf_reply_of(r, round) + r->layout.reply_ids, n * sizeof(*ids));
    return (int)n;
}

/* The daemon's times, unless it may still be writing them: a verdict of its own is behind them, and so is retired. */
static void take_timing(const struct hfe_session *e, uint32_t t, int verdict, struct hf_record *record)
{
    const struct hf_region *r = &e->region;
    struct hf_timing timing;

    if ((verdict == HF_EXPIRED || verdict == HF_LOST) &&
        hf_past(atomic_load_explicit(&r->daemon->retired.value, memory_order_acquire), t) < 0)
        return;
    memcpy(&timing, hf_reply_of(r, t), sizeof(timing));
    if (timing.round == t)
        record->timing = timing;
}

static void book(struct hfe_session *e, uint32_t t, int verdict)
{
    struct hf_stats *stats = e->region.stats;
    const struct hf_round *slot = hf_round_of(&e->region, t);
    uint64_t n = atomic_load_explicit(&stats->records, memory_order_relaxed);
    struct hf_record record = {
        .round = t,
        .verdict = (uint32_t)verdict,
        .n_requests = slot->n_requests,
        .n_rows = slot->n_rows,
        .flags = slot->flags,
        .submitted_ns = slot->submitted_ns,
        .gathered_ns = *hf_gathered_ns_of(&e->region, t),
    };

    take_timing(e, t, verdict, &record);
    /* Release fence: pairs with the readers' acquire fence. Nothing of the record below is seen before the number of those that were
       written so far: a reader that got a piece of it sees that its own record has been overtaken. */
    atomic_thread_fence(memory_order_release);
    stats->record[n % HF_RECORDS] = record;
    /* Release: pairs with hfe_record and hfp_view_records. */
    atomic_store_explicit(&stats->records, n + 1, memory_order_release);
    hfe_count(&stats->rounds[verdict], 1);
    if (slot->flags & HF_ROUND_CONTEXT_ONLY)
        hfe_count(&stats->context_only, 1);
}

/* The end of a submit that failed half-way, where the stream did not take the fence then: it may now, unless it is being captured. A
   synchronous one on a stream that takes no write is asked for, never waited for: whoever settles is about to submit. A later
   synchronize moves the mark, and what is past that is past this. */
static void look_at_half(struct hfe_session *e)
{
    if (!e->half || e->fenced)
        return;
    if (!e->waits) {
        if (!e->stream.check || e->stream.check(e->stream.context) == 0)
            (void)hfe_fence_half(e, 0); /* else again the next time */
        return;
    }
    if (!e->marked || !e->stream.drained || e->stream.drained(e->stream.context) <= 0)
        return;
    /* Release: as hfe_fence_half. */
    atomic_store_explicit(&e->region.engine->consumed.value, atomic_load_explicit(&e->attempted, memory_order_relaxed), memory_order_release);
    e->fenced = true;
}

/* A session of more rounds than half the counter: they are still told from those before it. */
static void move_base(struct hfe_session *e)
{
    if (hf_past(e->settled, atomic_load_explicit(&e->base, memory_order_relaxed)) > BASE_BEHIND)
        atomic_store_explicit(&e->base, e->settled - BASE_BEHIND / 2, memory_order_relaxed);
}

int hfe_settle_inside(struct hfe_session *e)
{
    int n = 0;

    look_at_half(e);
    for (uint32_t t = e->settled + 1; hfe_consumed(e, t); t++) {
        int found = hf_verdict_load(&e->region, t);

        if (found == HF_OPEN) /* a context-only round is consumed before it is decided */
            break;
        /* The slot cannot have gone on: it is this session's until it is booked. */
        if (found < 0 || found == HF_VERDICT_MAX)
            hfe_give_up(e, HF_LOSS_GARBAGE);
        book(e, t, found < 0 ? HF_LOST : hfe_verdict_taken(found));
        e->settled = t;
        n++;
    }
    move_base(e);
    return n;
}

int hfe_settle(struct hfe_session *e)
{
    int n;

    /* seq_cst: "bracket, lost". Settling may give the session up: its watchdog, and with it the region, waits until that is done. */
    atomic_store_explicit(&e->bracket, 1, memory_order_seq_cst);
    n = hfe_settle_inside(e);
    atomic_store_explicit(&e->bracket, 0, memory_order_release);
    return n;
}

/* Records are written one a round, in order, so a round's place follows from the newest one's. */
int hfe_record(const struct hfe_session *e, uint32_t round, struct hf_record *ret_record)
{
    const struct hf_stats *stats = e->region.stats;
    uint64_t n = atomic_load_explicit(&stats->records, memory_order_acquire);
    int32_t back;

    if (n == 0)
        return -ESTALE;
    back = hf_past(stats->record[(n - 1) % HF_RECORDS].round, round);
    if (back < 0 || back >= HF_RECORDS || (uint64_t)back >= n)
        return -ESTALE;
    memcpy(ret_record, &stats->record[(n - 1 - (uint64_t)back) % HF_RECORDS], sizeof(*ret_record));
    /* Acquire fence: the copy above is not delayed past this load; it shows whether the engine thread overtook us. */
    atomic_thread_fence(memory_order_acquire);
    /* The one that the newest would overwrite next may be half overwritten already. */
    if (atomic_load_explicit(&stats->records, memory_order_relaxed) - n + (uint64_t)back + 1 >= HF_RECORDS)
        return -ESTALE;
    return ret_record->round == round ? 0 : -ESTALE;
}

void hfe_status_words(const struct hf_region *r, struct hfe_status *ret_status)
{
    const struct hf_stats *stats = r->stats;
    struct hfe_status *s = ret_status;

    s->submitted = hf_word_load(r, HF_WORD_SUBMITTED);
    s->gathered = hf_word_load(r, HF_WORD_GATHERED);
    s->consumed = hf_word_load(r, HF_WORD_CONSUMED);
    s->released = hf_word_load(r, HF_WORD_RELEASED);
    s->retired = hf_word_load(r, HF_WORD_RETIRED);
    s->phase = hf_word_load(r, HF_WORD_PHASE);
    /* A failed submit's end is consumed too, and was never submitted. */
    s->in_flight = hf_past(s->submitted, s->consumed) > 0 ? s->submitted - s->consumed : 0;
    s->context_only = atomic_load_explicit(&stats->context_only, memory_order_relaxed);
    s->rows_shipped = atomic_load_explicit(&stats->rows_shipped, memory_order_relaxed);
    s->rows_deferred = atomic_load_explicit(&stats->rows_deferred, memory_order_relaxed);
    s->rows_left_out = atomic_load_explicit(&stats->rows_left_out, memory_order_relaxed);
    for (int i = 0; i < HF_VERDICT_MAX; i++)
        s->rounds[i] = atomic_load_explicit(&stats->rounds[i], memory_order_relaxed);
    for (int i = 0; i < HF_SKIP_MAX; i++)
        s->skipped[i] = atomic_load_explicit(&stats->skipped[i], memory_order_relaxed);
}

void hfe_status_of(const struct hfe_session *e, struct hfe_status *ret_status)
{
    const struct hfe_watchdog *w = &e->watchdog;

    *ret_status = (struct hfe_status){
        .lost = atomic_load_explicit(&e->lost, memory_order_acquire),
        .lost_ns = atomic_load_explicit(&e->lost_ns, memory_order_relaxed),
        .ticks = atomic_load_explicit(&w->ticks, memory_order_relaxed),
        .expired = atomic_load_explicit(&w->expired, memory_order_relaxed),
        .watchdog_late_ns = atomic_load_explicit(&w->late_ns, memory_order_relaxed),
        .watchdog_realtime = w->realtime,
        .lock_error = e->lock_error,
    };
    hfe_status_words(&e->region, ret_status);
}
