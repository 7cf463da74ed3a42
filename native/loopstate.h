/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The round loop from inside. roundloop.c: the thread and its waits; round.c: one round; link.c: the worker's link;
 * breaker.c: a failing worker is left alone; loopstart.c, loopcontrol.c: what the control plane calls. Everything here
 * belongs to the loop's thread but what says otherwise.
 */
#ifndef LOOPSTATE_H
#define LOOPSTATE_H

#include "breaker.h"
#include "eventring.h"
#include "failpoints.h"
#include "roundloop.h"
#include "roundwire.h"

#include <pthread.h>

/* A step of the beat must come within HF_BEAT_NS, late wake-ups included. */
#define HFD_BEAT_EVERY_NS (HF_BEAT_EVERY_MS * UINT64_C(1000000))
_Static_assert(HFD_BEAT_EVERY_NS < HF_BEAT_NS, "the beat keeps its promise with room for a late wake-up");

/* A message the control plane encoded, header included. */
struct hfd_encoded {
    uint32_t bytes;
    unsigned char data[];
};

/* A link on its way from the control plane to the loop. */
struct hfd_given {
    struct hfd_transport *transport;
    uint64_t tag;
    struct hfd_encoded *open;
};

enum hfd_command { HFD_COMMAND_STOP = 1, HFD_COMMAND_DRAIN = 2 }; /* bits */

/* Why the loop ends. */
enum hfd_end { HFD_END_NOT, HFD_END_STOP, HFD_END_LOST, HFD_END_GONE, HFD_END_FAULT };

struct hfd_link {
    struct hfd_transport *transport; /* NULL: HFD_LINK_NONE */
    uint64_t tag;
    struct hfd_encoded *open;
    enum hfd_link_state state;
    bool succeeds;            /* it took the place of a link that was up: rounds wait for its worker's answer to OPEN */
    bool ready;               /* the transport may have something: ask it before sleeping on its fds */
    const char *condemned;    /* why it is to be returned once no round is in hand; NULL: it is not */
    const char *down_reason;  /* said last, so that a failing handshake is not said at each attempt */
    uint64_t changed_ns;      /* when state became what it is */
    uint64_t heard_ns;        /* the last message that made sense */
    uint64_t pinged_ns;       /* a PING that nothing was heard since; 0: none */
    uint32_t ping;            /* its number */
    bool pong_due;
    uint32_t senseless;       /* messages in a row that were dropped */
    uint64_t reopen_after_ns; /* from the newest REFUSED to the next OPEN; 0: there was none on this link */
};

enum hfd_awaited { HFD_AWAITED_OPENED, HFD_AWAITED_PONG, HFD_AWAITED_MAX };

/* The round that a reply is awaited for. */
struct hfd_flight {
    bool waiting;
    enum hf_verdict verdict; /* HF_OPEN while waiting */
    struct hf_timing timing;
};

/* struct hfd_counters, to be counted in: the same words, atomic. One writer; readers at any time. */
#define HFD_COUNTER_WORDS (sizeof(struct hfd_counters) / sizeof(uint64_t))
#define HFD_COUNT(l, field, n) hfd_count(l, offsetof(struct hfd_counters, field) / sizeof(uint64_t), n)

struct hfd_loop {
    /* constant while the thread runs */
    struct hfd_config config;
    struct hf_region region; /* unmapped when the thread ends, but never changed: nudges may come late */
    pthread_t thread;
    int command_fd; /* eventfd: the control plane posted a command */
    int ended_fd;   /* eventfd: the thread is about to return */
    int lock_error;
    bool joined;    /* control thread only */

    /* control plane -> loop */
    _Atomic uint32_t command;
    _Atomic(struct hfd_given *) given; /* hfd_no_more once the loop takes none any more */
    _Atomic(struct hfd_encoded *) close;

    /* loop -> control plane */
    struct hfd_event_ring events;
    _Atomic uint64_t counters[HFD_COUNTER_WORDS];
    struct hfd_histogram histograms[HFD_HISTOGRAM_MAX];
    _Atomic uint32_t shown_link, shown_breaker, shown_phase, shown_done, stopped;
    _Atomic int precise_error;
    _Atomic uint64_t up_ns;

    /* the thread's own */
    uint32_t done; /* the last round retired */
    enum hfd_end end;
    const char *fault;
    bool gather_fault_said;
    uint64_t beat_ns; /* the last beat */
    uint64_t released_ns; /* the last release */
    struct hf_nap nap;
    struct hfd_link link;
    uint32_t doublings[HFD_AWAITED_MAX]; /* of the limit for an answer, since the last one that came in time */
    struct hfd_breaker breaker;
    struct hfd_flight flight;
    struct hfd_wire wire;
};

/* What stands in l->given for "no more links": an address that is none. */
static inline struct hfd_given *hfd_no_more(struct hfd_loop *l)
{
    return (struct hfd_given *)l;
}

static inline void hfd_count(struct hfd_loop *l, size_t word, uint64_t n)
{
    /* Relaxed, and no locked add: there is one writer, and a count orders nothing. */
    uint64_t now = atomic_load_explicit(&l->counters[word], memory_order_relaxed);

    atomic_store_explicit(&l->counters[word], now + n, memory_order_relaxed);
}

/* The time to gathered counts from here: a round behind a parked one is gathered so long after its release, whatever the worker took. */
static inline uint64_t hfd_gather_from(const struct hfd_loop *l, uint64_t submitted, uint64_t taken)
{
    return l->released_ns > submitted && l->released_ns <= taken ? l->released_ns : submitted;
}

/* ---- roundloop.c ---- */

void *hfd_loop_main(void *loop);
/* Commands, the lost word and, when it is due, beat, socket and link. After it l->end says whether to go on. */
void hfd_loop_tend(struct hfd_loop *l);
/* Sleeps until a command, the engine's end, or (with_link) something on the link; at most timeout_ns, and never past the
   next beat. */
void hfd_loop_sleep(struct hfd_loop *l, uint64_t timeout_ns, bool with_link);
void hfd_loop_say(struct hfd_loop *l, const struct hfd_event *event);
void hfd_loop_fail(struct hfd_loop *l, const char *fault);

/* ---- round.c ---- */

/* Round t, which is submitted, up to retired := t; or until l->end. */
void hfd_round_run(struct hfd_loop *l, uint32_t t);
/* The loop was stopped: what is gathered already is released, HF_DRAINING. */
void hfd_round_drain(struct hfd_loop *l);
/* A REPLY of this session. True: it answered the round in flight, whose verdict is set. */
bool hfd_round_reply(struct hfd_loop *l, uint32_t round, const void *body, size_t bytes, bool whole);

/* ---- patience.c ---- */

/* Whether what is awaited now was waited for long enough; then the next one of a worker that is slow may take twice as long. */
bool hfd_patience_spent(struct hfd_loop *l, uint64_t now_ns);
/* The worker said something. What came in time makes the next one be waited for as the first. */
void hfd_patience_answered(struct hfd_loop *l, uint64_t now_ns);

/* ---- link.c ---- */

void hfd_link_take(struct hfd_loop *l, struct hfd_given *given);
/* Takes what the transport has, until the round in flight is answered. */
void hfd_link_drain(struct hfd_loop *l);
/* PING, silence, an unanswered OPEN. */
void hfd_link_tend(struct hfd_loop *l);
/* At each beat: floods. */
void hfd_link_check(struct hfd_loop *l);
/* 0, -EAGAIN, or -errno: then the link is to be returned. */
int hfd_link_send(struct hfd_loop *l, const struct hfd_outgoing *m);
/* The link is no good: nothing more is sent or taken; hfd_link_settle returns it, once no round is in hand. */
void hfd_link_condemn(struct hfd_loop *l, const char *reason);
void hfd_link_settle(struct hfd_loop *l);
/* Whether rounds can be sent. */
bool hfd_link_up(const struct hfd_loop *l);
/* Whether they soon can: it took the place of a link that was up, and its worker is about to answer OPEN. */
bool hfd_link_coming(const struct hfd_loop *l);
/* Waits for that, for half of the network timeout at most and then not again. HF_OPEN: rounds can be sent. */
enum hf_verdict hfd_link_await(struct hfd_loop *l, uint64_t began_ns);
/* How long after the REFUSED that is at hand OPEN is sent again. */
uint64_t hfd_link_reopen_after(const struct hfd_loop *l);
/* Of rounds that cannot. */
enum hf_verdict hfd_link_verdict(const struct hfd_loop *l);
/* Sends OPEN (again). */
void hfd_link_open(struct hfd_loop *l);
/* The session is over: CLOSE, where there is one to send, then the link is returned. */
void hfd_link_end(struct hfd_loop *l, const struct hfd_encoded *close);

#endif
