/* SPDX-License-Identifier: Apache-2.0 */
/* One round: wait until it is gathered, carry it to the worker and its reply back, decide, release, retire. */
#include "loopstate.h"

#include <errno.h>

#define LOOK_EVERY_NS 10000000 /* while a reply is due: a flood in its place costs what comes in meanwhile, not in a beat */
#define SHORT_NAP_NS 200000     /* below this a nap is only a nap; above, the loop can be spoken to during it */
#define PROMPT_NS 200000        /* a header seen so soon after submitted: the loop was not busy elsewhere */
#define OLDEST_NS 10000000000   /* a submitted_ns further back is not from our clock */

static bool gathered(const struct hfd_loop *l, uint32_t t)
{
    /* Acquire: what the stream wrote before gathered is seen ("rows, gathered"). */
    return hf_past(atomic_load_explicit(&l->region.engine->gathered.value, memory_order_acquire), t) >= 0;
}

static bool spin(const struct hfd_loop *l, uint32_t t)
{
    uint64_t start = hf_now_ns();

    do {
        for (int i = 0; i < 16; i++) {
            if (gathered(l, t))
                return true;
            hf_pause();
        }
    } while (hf_now_ns() - start < l->config.spin_ns);
    return false;
}

static void nap(struct hfd_loop *l, uint64_t ns)
{
    if (ns < SHORT_NAP_NS)
        hf_sleep_ns(ns);
    else
        hfd_loop_sleep(l, ns, false);
}

/* The stream's own time of gathered, if it has one that can be: not before the look that found it ungathered. */
static uint64_t gathered_at(const struct hfd_loop *l, uint32_t t, uint64_t not_before, uint64_t seen)
{
    const _Atomic uint64_t *stamp = (const _Atomic uint64_t *)hf_gathered_ns_of(&l->region, t);
    uint64_t at = atomic_load_explicit(stamp, memory_order_relaxed);

    return at > not_before && at <= seen ? at : 0;
}

static void learn(struct hfd_loop *l, uint32_t t, uint64_t submitted, uint64_t taken, uint64_t looked, uint64_t seen)
{
    uint64_t at = gathered_at(l, t, looked ? looked : submitted, seen), from = hfd_gather_from(l, submitted, taken);

    hfd_histogram_add(&l->histograms[HFD_HISTOGRAM_GATHER], seen - submitted);
    if (looked)
        hfd_histogram_add(&l->histograms[HFD_HISTOGRAM_WAKEUP], seen - (at ? at : looked));
    /* A round that was gathered while the loop was busy with the one before tells how long that took, not this. */
    if ((at || looked || taken - submitted < PROMPT_NS) && (at ? at : seen) > from)
        hf_nap_learn(&l->nap, (at ? at : seen) - from);
}

/* Returns when gathered was seen, or 0 where the loop is to end first. */
static uint64_t wait_gathered(struct hfd_loop *l, uint32_t t)
{
    uint64_t taken = hf_now_ns(), submitted = l->wire.round.submitted_ns;
    uint64_t looked = 0, seen; /* looked: the last time that it was not gathered */

    if (submitted > taken || taken - submitted > OLDEST_NS)
        submitted = taken;
    for (;;) {
        uint64_t now = hf_now_ns(), ns;

        if (gathered(l, t))
            break;
        looked = now;
        hfd_loop_tend(l);
        if (l->end)
            return 0;
        ns = hf_nap_next(&l->nap, now - hfd_gather_from(l, submitted, taken));
        if (ns > 0)
            nap(l, ns);
        else if (spin(l, t))
            break;
    }
    seen = hf_now_ns();
    learn(l, t, submitted, taken, looked, seen);
    return seen;
}

/* One step of waiting for the transport. Returns HF_OPEN while there is reason to go on waiting. */
static enum hf_verdict wait_step(struct hfd_loop *l, uint64_t deadline, enum hf_verdict late)
{
    uint64_t now;

    hfd_loop_tend(l);
    if (l->flight.verdict != HF_OPEN)
        return l->flight.verdict;
    if (l->end)
        return HF_DRAINING;
    if (!hfd_link_up(l))
        return hfd_link_verdict(l);
    now = hf_now_ns();
    if (now >= deadline)
        return late;
    hfd_loop_sleep(l, deadline - now < LOOK_EVERY_NS ? deadline - now : LOOK_EVERY_NS, true);
    if (!l->link.ready)
        hfd_link_check(l);
    return HF_OPEN;
}

static enum hf_verdict send_round(struct hfd_loop *l, uint64_t deadline)
{
    enum hf_verdict v = HF_OPEN;

    /* A connection that went, or came anew, is known before the round is put on it. */
    hfd_loop_sleep(l, 0, true);
    if (l->link.ready)
        hfd_link_drain(l);
    while (v == HF_OPEN) {
        int r;

        if (!hfd_link_up(l))
            return hfd_link_verdict(l);
        r = hfd_link_send(l, &l->wire.message);
        if (r == 0)
            return HF_OPEN;
        if (r != -EAGAIN)
            return HF_SEND_ERROR;
        v = wait_step(l, deadline, HF_SEND_ERROR);
    }
    if (v == HF_SEND_ERROR)
        hfd_link_condemn(l, "the worker takes nothing within the network timeout");
    return v;
}

static enum hf_verdict bad_gather(struct hfd_loop *l, const char *fault)
{
    HFD_COUNT(l, bad_gathers, 1);
    if (!l->gather_fault_said)
        hfd_loop_say(l, &(struct hfd_event){.kind = HFD_EVENT_BAD_GATHER, .reason = fault});
    l->gather_fault_said = true;
    return HF_SEND_ERROR;
}

/* To the worker and back. */
static enum hf_verdict carry(struct hfd_loop *l)
{
    struct hf_timing *timing = &l->flight.timing;
    uint64_t began = hf_now_ns(), deadline = began + l->config.network_timeout_ns;
    enum hf_verdict v;
    const char *fault;

    if (atomic_load_explicit(&l->command, memory_order_relaxed) & HFD_COMMAND_DRAIN)
        return HF_DRAINING;
    if (l->wire.empty) /* nobody to draft for */
        return HF_OK;
    v = hfd_link_await(l, began);
    if (v != HF_OPEN)
        return v;
    fault = hfd_wire_build(&l->wire);
    if (fault)
        return bad_gather(l, fault);
    if (!hfd_breaker_admits(l))
        return HF_BREAKER;
    timing->send_ns = hf_now_ns();
    l->flight.waiting = true;
    v = send_round(l, deadline);
    if (v != HF_OPEN)
        return v;
    timing->sent_ns = hf_now_ns();
    HFD_COUNT(l, rows_sent, l->wire.valid_rows);
    HFD_COUNT(l, rows_rejected, l->wire.round.n_rows - l->wire.valid_rows);
    if (l->wire.context_only)
        return HF_OK;
    HF_FAILPOINT(sent);
    while (v == HF_OPEN)
        v = wait_step(l, deadline, HF_TIMEOUT);
    if (v == HF_TIMEOUT) /* its reply may still come: a new link knows nothing of it */
        hfd_link_condemn(l, "no reply within the network timeout");
    return v;
}

bool hfd_round_reply(struct hfd_loop *l, uint32_t round, const void *body, size_t bytes, bool whole)
{
    struct hfd_flight *f = &l->flight;

    /* sent_ns: until then nothing can be an answer. */
    if (!f->waiting || f->verdict != HF_OPEN || f->timing.sent_ns == 0 || round != f->timing.round || l->wire.context_only)
        return false;
    f->timing.replied_ns = hf_now_ns();
    switch (whole ? hfd_wire_check_reply(&l->wire, body, bytes) : HFD_REPLY_BAD) {
    case HFD_REPLY_OK:
        HF_FAILPOINT(replied);
        hfd_wire_store_reply(&l->wire, body);
        f->verdict = HF_OK;
        break;
    case HFD_REPLY_UNKNOWN_SESSION:
        f->verdict = HF_REFUSED;
        HFD_COUNT(l, unknown_sessions, 1);
        hfd_link_open(l);
        break;
    case HFD_REPLY_REFUSED:
        f->verdict = HF_REFUSED;
        break;
    case HFD_REPLY_BAD:
        f->verdict = HF_BAD_REPLY;
        HFD_COUNT(l, bad_replies, 1);
        break;
    }
    return true;
}

static void book(struct hfd_loop *l, int verdict, uint64_t released)
{
    const struct hf_timing *m = &l->flight.timing;
    uint64_t whole = released - m->seen_ns, network = m->replied_ns - m->send_ns;

    HFD_COUNT(l, rounds[verdict], 1);
    HFD_COUNT(l, context_only, l->wire.context_only);
    if (verdict != HF_OK || l->wire.context_only || l->wire.empty)
        return;
    hfd_histogram_add(&l->histograms[HFD_HISTOGRAM_ROUND], whole);
    hfd_histogram_add(&l->histograms[HFD_HISTOGRAM_NETWORK], network);
    hfd_histogram_add(&l->histograms[HFD_HISTOGRAM_SEND], m->sent_ns - m->send_ns);
    hfd_histogram_add(&l->histograms[HFD_HISTOGRAM_OWN], whole - network);
}

/* Reply, verdict, released, retired: in this order. */
static void finish(struct hfd_loop *l, uint32_t t, enum hf_verdict verdict)
{
    int holds = (int)verdict;
    uint64_t released;

    l->flight.timing.decided_ns = hf_now_ns();
    hfd_wire_store_timing(&l->wire, &l->flight.timing);
    HF_FAILPOINT(stored);
    if (!hf_decide(&l->region, t, verdict)) {
        holds = hf_verdict_load(&l->region, t);
        if (holds <= HF_OPEN || holds >= HF_VERDICT_MAX) {
            hfd_loop_fail(l, "a slot's verdict is of another round, or none");
            return;
        }
        HFD_COUNT(l, outvoted, 1);
    }
    HF_FAILPOINT(decided);
    /* Whoever decided: a released that is there already stays. */
    hf_release(&l->region, t);
    HF_FAILPOINT(released);
    released = l->released_ns = hf_now_ns();
    /* Release: our reads of slot and rows are over before the engine sees this and refills them ("rows, retired"). */
    atomic_store_explicit(&l->region.daemon->retired.value, t, memory_order_release);
    l->done = t;
    atomic_store_explicit(&l->shown_done, t, memory_order_relaxed);
    book(l, holds, released);
}

void hfd_round_run(struct hfd_loop *l, uint32_t t)
{
    const char *fault = hfd_wire_take(&l->wire, t);
    enum hf_verdict verdict;
    uint64_t seen;

    if (fault) {
        hfd_loop_fail(l, fault);
        return;
    }
    HF_FAILPOINT(taken);
    seen = wait_gathered(l, t);
    if (seen == 0)
        return;
    HF_FAILPOINT(gathered);
    l->flight = (struct hfd_flight){.timing = {.round = t, .seen_ns = seen}};
    verdict = carry(l);
    if (l->flight.waiting)
        hfd_breaker_book(l, verdict);
    l->flight.waiting = false;
    /* Stopped, the round in hand still ends. Lost or gone, nothing is written any more. */
    if (l->end == HFD_END_NOT || l->end == HFD_END_STOP)
        finish(l, t, verdict);
}

void hfd_round_drain(struct hfd_loop *l)
{
    /* As many as there are slots at most: after that submitted is a lie, or the engine goes on without end. */
    for (uint32_t i = 0; i < l->region.geometry.slots && l->end == HFD_END_STOP; i++) {
        uint32_t t = l->done + 1;
        /* Acquire: pairs with hf_doorbell_ring ("header, submitted"). */
        uint32_t submitted = atomic_load_explicit(&l->region.engine->submitted.value, memory_order_acquire);
        const char *fault;

        if (hf_past(submitted, t) < 0 || !gathered(l, t))
            return;
        fault = hfd_wire_take(&l->wire, t);
        if (fault) {
            hfd_loop_fail(l, fault);
            return;
        }
        l->flight = (struct hfd_flight){.timing = {.round = t, .seen_ns = hf_now_ns()}};
        finish(l, t, HF_DRAINING);
    }
}
