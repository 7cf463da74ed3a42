/* SPDX-License-Identifier: Apache-2.0 */
#include "loopstate.h"

#define FNV_START UINT64_C(0xcbf29ce484222325)
#define FNV_PRIME UINT64_C(0x100000001b3)

enum outcome { NEITHER, SUCCESS, FAILURE };

static void change(struct hfd_loop *l, enum hfd_breaker_state state, enum hfd_event_kind kind, const char *reason)
{
    l->breaker.state = state;
    /* Relaxed: for status only. */
    atomic_store_explicit(&l->shown_breaker, state, memory_order_relaxed);
    hfd_loop_say(l, &(struct hfd_event){.kind = kind, .reason = reason});
}

static void open_up(struct hfd_loop *l, const char *reason)
{
    struct hfd_breaker *b = &l->breaker;

    b->until_ns = hf_now_ns() + b->cool_ns;
    b->cool_ns = b->cool_ns * 2 < HFD_BREAKER_MOST_NS ? b->cool_ns * 2 : HFD_BREAKER_MOST_NS;
    HFD_COUNT(l, breaker_opens, 1);
    change(l, HFD_BREAKER_OPEN, HFD_EVENT_BREAKER_OPEN, reason);
}

static void close_again(struct hfd_loop *l, const char *reason)
{
    l->breaker.failures = 0;
    l->breaker.cool_ns = l->config.breaker_cool_ns;
    l->breaker.lost = false;
    if (l->breaker.state != HFD_BREAKER_CLOSED)
        change(l, HFD_BREAKER_CLOSED, HFD_EVENT_BREAKER_CLOSED, reason);
}

void hfd_breaker_init(struct hfd_loop *l)
{
    l->breaker.cool_ns = l->config.breaker_cool_ns;
}

bool hfd_breaker_admits(struct hfd_loop *l)
{
    struct hfd_breaker *b = &l->breaker;

    if (b->state == HFD_BREAKER_CLOSED)
        return true;
    /* A round that no reply comes to would prove nothing. */
    if (l->wire.context_only || hf_now_ns() < b->until_ns)
        return false;
    HFD_COUNT(l, breaker_probes, 1);
    change(l, HFD_BREAKER_HALF_OPEN, HFD_EVENT_BREAKER_PROBE, NULL);
    return true;
}

static enum outcome outcome_of(const struct hfd_loop *l, enum hf_verdict verdict)
{
    switch (verdict) {
    case HF_TIMEOUT:
    case HF_BAD_REPLY:
    case HF_SEND_ERROR:
        return FAILURE;
    case HF_OK:
    case HF_REFUSED:
        /* A worker that says no says it in time. But what was not answered says nothing of it. */
        return l->flight.timing.replied_ns ? SUCCESS : NEITHER;
    default:
        return NEITHER;
    }
}

void hfd_breaker_book(struct hfd_loop *l, enum hf_verdict verdict)
{
    struct hfd_breaker *b = &l->breaker;
    enum outcome outcome = outcome_of(l, verdict);

    if (outcome == SUCCESS) {
        close_again(l, "the probe round was answered");
    } else if (outcome == FAILURE) {
        b->failures += b->failures < UINT32_MAX;
        if (b->state == HFD_BREAKER_HALF_OPEN)
            open_up(l, "the probe round failed too");
        else if (l->config.breaker_failures && b->failures >= l->config.breaker_failures)
            open_up(l, "too many rounds in a row failed");
    } else if (b->state == HFD_BREAKER_HALF_OPEN) {
        /* The connection went, or the daemon drains: the next round that can be sent is the probe. */
        change(l, HFD_BREAKER_OPEN, HFD_EVENT_BREAKER_OPEN, "the probe round was cut short");
    }
}

static uint64_t hash_of(const unsigned char *body, uint32_t bytes)
{
    uint64_t hash = FNV_START;

    for (uint32_t i = 0; i < bytes; i++)
        hash = (hash ^ body[i]) * FNV_PRIME;
    return hash ? hash : 1;
}

void hfd_breaker_meet(struct hfd_loop *l, const unsigned char *body, uint32_t bytes)
{
    struct hfd_breaker *b = &l->breaker;
    uint64_t worker = hash_of(body, bytes), before = b->worker;

    b->worker = worker;
    if (before != 0 && before != worker) {
        HFD_COUNT(l, worker_changes, 1);
        close_again(l, "another worker has opened the session");
    } else if (b->lost) {
        /* What failed before its connection went still counts. */
        b->lost = false;
        change(l, HFD_BREAKER_CLOSED, HFD_EVENT_BREAKER_CLOSED, "the worker has opened the session again");
    }
}

void hfd_breaker_lose(struct hfd_loop *l)
{
    struct hfd_breaker *b = &l->breaker;

    if (b->state != HFD_BREAKER_CLOSED || !l->config.breaker_failures)
        return;
    b->lost = true;
    b->until_ns = 0; /* nothing has to cool down: whoever opens the session next is asked at once */
    HFD_COUNT(l, breaker_opens, 1);
    change(l, HFD_BREAKER_OPEN, HFD_EVENT_BREAKER_OPEN, "the connection to the worker was lost");
}
