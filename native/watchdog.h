/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watchdog: a thread that releases the stream when nobody else does, and sees when a session is lost. It takes no
 * interpreter lock, calls no stream, writes no replies. It sleeps in a poll on the session's socket and a bell; while
 * rounds are in flight the poll has a tick.
 */
#ifndef WATCHDOG_H
#define WATCHDOG_H

#include "hostflag.h"

#include <pthread.h>

struct hfe_session;

/* A gathered round, as the watchdog saw it. */
struct hfe_seen {
    uint32_t round;
    uint32_t noted;
    uint64_t seen_ns;   /* when it was first seen gathered */
    uint64_t paused_ns; /* the watchdog's own pauses up to then */
};

struct hfe_watchdog {
    pthread_t thread;
    int bell;   /* eventfd */
    int hangup; /* a duplicate of the session's socket, or -1 */
    int loss;   /* a duplicate of the eventfd that is told of the loss, or -1 */
    int realtime;
    _Atomic uint32_t at_rest;  /* 1: it sleeps without a tick, or is about to; 2: and somebody is waking it */
    _Atomic uint32_t ended;    /* 1: it is over, and will not touch the session again */
    _Atomic uint64_t tick_ns;  /* its last tick */
    _Atomic uint64_t ticks, expired, late_ns;
    /* the thread's own */
    struct hfe_seen seen[HF_MAX_SLOTS];
    int socket; /* what it polls: hangup, until that said something; -1 then */
    uint64_t last_ns;       /* the last look; 0 after a rest */
    uint64_t paused_ns;     /* all the time it could not run when it should have */
    uint64_t still_ns;      /* for how much of its running time the beat stood still */
    uint32_t beat;
    uint32_t released;      /* as it left it */
    uint32_t expiries;      /* with no round finished between */
};

/* Starts the thread; e->region, config and base are set. Returns 0 or -errno. */
int hfe_watchdog_start(struct hfe_session *e);
/* Wakes it if it is at rest; from then on it counts as running. Any thread. */
void hfe_watchdog_wake(struct hfe_session *e);
/* Whether it can be trusted with another round's deadline. */
bool hfe_watchdog_ready(const struct hfe_session *e, uint64_t now_ns);
/* One look, of the thread's own (watch.c). */
void hfe_watchdog_look(struct hfe_session *e);
/* Waits for it to end by itself. 0, or -ETIMEDOUT. */
int hfe_watchdog_join(struct hfe_session *e, uint64_t timeout_ns);
/* In a child after a fork: there is no such thread. Closes the child's copies of its descriptors. */
void hfe_watchdog_forked(struct hfe_session *e);
/* Joins the thread (which has ended) and frees what start made. */
void hfe_watchdog_done(struct hfe_session *e);

#endif
