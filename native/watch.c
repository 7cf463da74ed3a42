/* SPDX-License-Identifier: Apache-2.0 */
/* One look of the watchdog at the words: what is too old, what is decided, whether the daemon lives. */
#include "watchdog.h"

#include "failpoints.h"
#include "session.h"

/* Booked between two looks: its own pauses, and for how long it ran. A pause is what a tick lasted beyond twice its time. */
static uint64_t book_time(struct hfe_session *e, uint64_t now)
{
    struct hfe_watchdog *w = &e->watchdog;
    uint64_t gap = w->last_ns ? now - w->last_ns : 0;
    uint64_t tick = e->config.tick_ns;
    uint64_t paused = gap > 2 * tick ? gap - 2 * tick : 0;

    if (gap > tick && gap - tick > atomic_load_explicit(&w->late_ns, memory_order_relaxed))
        atomic_store_explicit(&w->late_ns, gap - tick, memory_order_relaxed);
    w->last_ns = now;
    w->paused_ns += paused;
    /* Release: pairs with hfe_watchdog_ready. */
    atomic_store_explicit(&w->tick_ns, now, memory_order_release);
    atomic_store_explicit(&w->ticks, atomic_load_explicit(&w->ticks, memory_order_relaxed) + 1, memory_order_relaxed);
    return gap - paused;
}

static bool context_only(const struct hfe_session *e, uint32_t t)
{
    uint64_t kind = atomic_load_explicit(&e->kind[t & (e->region.geometry.slots - 1)], memory_order_relaxed);

    return kind >> 32 == t && (kind & HF_ROUND_CONTEXT_ONLY);
}

/* Somebody else decided rounds up to t: expiries before them are forgiven. Context-only rounds forgive nothing, since they
   say nothing about drafts coming back. */
static void note_finished(struct hfe_session *e, uint32_t from, uint32_t to)
{
    uint32_t slots = e->region.geometry.slots;

    for (uint32_t i = 0; i < slots && hf_past(to, from + i) > 0; i++)
        if (!context_only(e, from + i + 1)) {
            e->watchdog.expiries = 0;
            return;
        }
}

/* When round t was first seen gathered. Each slot has its own clock: one for the oldest round alone would let deadlines
   add up behind it. */
static struct hfe_seen *see(struct hfe_session *e, uint32_t t, uint64_t now)
{
    struct hfe_seen *seen = &e->watchdog.seen[t & (e->region.geometry.slots - 1)];

    if (!seen->noted || seen->round != t)
        *seen = (struct hfe_seen){.round = t, .noted = 1, .seen_ns = now, .paused_ns = e->watchdog.paused_ns};
    return seen;
}

static void expire(struct hfe_session *e, uint32_t t, const struct hfe_seen *seen, uint64_t now)
{
    struct hfe_watchdog *w = &e->watchdog;
    uint64_t age = now - seen->seen_ns;
    uint64_t paused = w->paused_ns - seen->paused_ns;

    if (age <= e->config.deadline_ns || !hf_decide(&e->region, t, HF_EXPIRED))
        return;
    HF_FAILPOINT(swapped);
    atomic_store_explicit(&w->expired, atomic_load_explicit(&w->expired, memory_order_relaxed) + 1, memory_order_relaxed);
    /* Not the daemon's fault: a context-only round waits for nobody, and what only our own pause made old is not old. */
    if (!context_only(e, t) && age - paused > e->config.deadline_ns)
        w->expiries++;
}

/* Nothing is released before it is gathered, and no round is gathered before the one S earlier is released. */
static bool released_can_be(const struct hf_region *r, uint32_t released, uint32_t gathered)
{
    int32_t slots = (int32_t)r->geometry.slots, behind = hf_past(gathered, released);

    if (behind <= slots)
        return behind >= 0;
    /* Between the two loads more than S rounds may have come and gone. */
    return hf_past(gathered, atomic_load_explicit(&r->shared->released.value, memory_order_acquire)) <= slots;
}

/* Whatever the daemon wrote there: by the engine's own words, everything that is gathered is decided and released. */
static void let_all_go(struct hfe_session *e, uint32_t gathered)
{
    const struct hf_region *r = &e->region;
    uint32_t consumed = atomic_load_explicit(&r->engine->consumed.value, memory_order_acquire);

    hfe_give_up(e, HF_LOSS_GARBAGE);
    for (uint32_t i = 0; i < r->geometry.slots && hf_past(gathered, consumed + i) > 0; i++)
        hf_decide(r, consumed + i + 1, HF_LOST);
    /* In two steps: from half the counter away, which is neither before nor behind, the first is a step forward. What is ahead stays:
       released never goes back, and parks nobody there. */
    hf_release(r, gathered - 1);
    hf_release(r, gathered);
    e->watchdog.released = gathered;
}

/* Decides what must not wait any longer, then releases what is decided, in order. Every word is read once: between two
   reads the slot may have gone on to another round. */
static void look_at_rounds(struct hfe_session *e, uint64_t now)
{
    const struct hf_region *r = &e->region;
    struct hfe_watchdog *w = &e->watchdog;
    /* Acquire: pairs with hf_release, and with the stream's write of gathered ("rows, gathered"). */
    uint32_t released = atomic_load_explicit(&r->shared->released.value, memory_order_acquire);
    uint32_t gathered = atomic_load_explicit(&r->engine->gathered.value, memory_order_acquire);
    bool lost = hfe_lost(e) != HF_LOSS_NONE;
    uint32_t top = released;
    bool in_order = true;

    if (!released_can_be(r, released, gathered)) {
        let_all_go(e, gathered);
        return;
    }
    note_finished(e, w->released, released);
    for (uint32_t i = 0; i < r->geometry.slots && hf_past(gathered, released + i) > 0; i++) {
        uint32_t t = released + i + 1;
        const struct hfe_seen *seen = see(e, t, now);
        int verdict = hfe_verdict_taken(hf_verdict_load(r, t));

        if (verdict == HF_OPEN) {
            if (lost)
                hf_decide(r, t, HF_LOST);
            else
                expire(e, t, seen, now);
            verdict = hfe_verdict_taken(hf_verdict_load(r, t));
        } else if (verdict > HF_OPEN && verdict != HF_EXPIRED && verdict != HF_LOST) {
            note_finished(e, t - 1, t);
        }
        /* -ESTALE: the slot went on, so somebody released the round meanwhile. */
        in_order = in_order && verdict != HF_OPEN;
        if (in_order)
            top = t;
    }
    if (top != released)
        hf_release(r, top);
    w->released = top;
}

/* Counted in the watchdog's own running time: a frozen container is not a dead daemon. */
static void look_at_beat(struct hfe_session *e, uint64_t ran_ns)
{
    struct hfe_watchdog *w = &e->watchdog;
    uint32_t beat = atomic_load_explicit(&e->region.daemon->beat.value, memory_order_relaxed);

    if (beat != w->beat) {
        w->beat = beat;
        w->still_ns = 0;
        return;
    }
    w->still_ns += ran_ns;
    if (e->config.beat_limit_ns && w->still_ns >= e->config.beat_limit_ns)
        hfe_give_up(e, HF_LOSS_BEAT);
}

void hfe_watchdog_look(struct hfe_session *e)
{
    uint64_t now = hf_now_ns();
    uint64_t ran = book_time(e, now);
    bool was_lost = hfe_lost(e) != HF_LOSS_NONE;

    look_at_rounds(e, now);
    if (was_lost)
        return;
    look_at_beat(e, ran);
    if (e->config.expiries_limit && e->watchdog.expiries >= e->config.expiries_limit)
        hfe_give_up(e, HF_LOSS_EXPIRIES);
    if (hfe_lost(e) != HF_LOSS_NONE)
        look_at_rounds(e, now); /* what is gathered is released at once, not a tick later */
}
