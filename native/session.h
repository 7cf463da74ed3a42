/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A region and a session on it, inside. Of a session there are three kinds of fields: fixed once open, the engine thread's own,
 * and words that the watchdog and other threads read and write.
 */
#ifndef SESSION_H
#define SESSION_H

#include "backlog.h"
#include "engine.h"
#include "plan.h"
#include "ring.h"
#include "watchdog.h"

/* Outlives its sessions: what the stream may touch of it stays where it is for as long as the engine lives. */
struct hfe_region {
    struct hf_region map;
    struct hfe_stream stream;
    int fd; /* of the memfd: to hand it to a daemon that adopts it */
    int lock_error;
    bool kept; /* the stream was told of it */
    void *memory;   /* device memory: the backlog */
    int64_t *legal; /* device memory: ids that are legal and stay so, for steps without a round */
    uint32_t backlog_rows;
    _Atomic uint32_t sessions; /* 1: one that is not ended is on it */
    _Atomic uint32_t poisoned; /* 1: a submit failed half-way: it is never used again */
};

struct hfe_session {
    /* fixed */
    struct hfe_region *owner;
    struct hf_region region;
    struct hfe_stream stream;
    struct hfe_config config;
    int lock_error;
    const int64_t *legal;

    /* the engine thread's */
    struct hfe_ring ring;
    struct hfe_backlog backlog;
    struct hfe_plan plan;
    uint32_t settled;
    bool half;   /* a submit failed half-way */
    bool waits;  /* and it was a synchronous one: it can be waited for */
    bool marked; /* and synchronize has marked where it ends: the stream can be asked whether it is past that */
    bool fenced; /* and yet the stream will say when it is past what was enqueued */
    bool sync;   /* the submit under way waits for its rounds */
    bool over;   /* whoever ended it: the watchdog is gone */

    /* words */
    _Atomic uint32_t bracket;   /* 1: the engine thread submits or settles */
    _Atomic uint32_t closing;   /* 1: no more submits, but what is in flight may finish */
    _Atomic uint32_t lost;      /* enum hf_loss; set once */
    _Atomic uint64_t lost_ns;
    _Atomic uint32_t base;      /* the last round before this session; of a long one, a round long past */
    _Atomic uint32_t attempted; /* the newest round that the stream was given anything of */
    _Atomic uint64_t kind[HF_MAX_SLOTS]; /* a slot's round in the upper half, its HF_ROUND_* flags in the lower */
    struct hfe_watchdog watchdog;
};

/* Whether the stream or the daemon still has something to do with a round of this session. */
static inline bool hfe_in_flight(const struct hfe_session *e)
{
    const struct hf_region *r = &e->region;

    /* Acquire: pairs with the stream's writes and with hf_release. */
    return atomic_load_explicit(&r->engine->consumed.value, memory_order_acquire) !=
               atomic_load_explicit(&e->attempted, memory_order_relaxed) ||
           atomic_load_explicit(&r->engine->gathered.value, memory_order_acquire) !=
               atomic_load_explicit(&r->shared->released.value, memory_order_acquire);
}

/* enum hf_loss */
static inline uint32_t hfe_lost(const struct hfe_session *e)
{
    /* seq_cst: "bracket, lost", mirror of hfe_submit. */
    return atomic_load_explicit(&e->lost, memory_order_seq_cst);
}

/* What hf_verdict_load found, as the engine takes it: a value that is none came from a daemon that writes garbage, and is not OK. */
static inline int hfe_verdict_taken(int found)
{
    return found < HF_VERDICT_MAX ? found : HF_LOST;
}

/* The words and counters of a region into a status (settle.c). */
void hfe_status_words(const struct hf_region *r, struct hfe_status *ret_status);
/* Enqueues the end of a half-submitted round, if there is one and that could not be done before; of a synchronous one, where the
   stream takes no writes, waits for it instead, at most timeout_ns. 0 or -errno. Engine thread, or where nobody submits. */
int hfe_fence_half(struct hfe_session *e, uint64_t timeout_ns);

/* hfe_settle where the bracket is set. */
int hfe_settle_inside(struct hfe_session *e);

/* Adds to a counter that only the engine thread writes. */
static inline void hfe_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

#endif
