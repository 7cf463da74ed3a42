/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words under stress, in one process and, for the thread sanitizer, on one map: engine thread, soft stream, watchdog and round
 * loop are the product's own files; only the worker is made up. points.c holds threads up and lets daemons die; oracle.c and
 * monitor.c check the invariants of docs/ARCHITECTURE.md; engineside.c submits; worker.c answers; stress.c is the keeper.
 */
#ifndef STRESS_H
#define STRESS_H

#include "loopstate.h"
#include "session.h"
#include "softstream.h"
#include "softstream.h"

#define REQUESTS 4
#define DRAFTS 3
#define ROW_BYTES 512 /* so that the rounds in flight fill the ring, the smallest there is */
#define MOST_ROWS 24
#define VOCAB 50021
#define REGIONS 192 /* made in one run at most: each failed submit poisons one */
#define WINNERS 65536
#define MS UINT64_C(1000000)

struct stress_options {
    uint64_t rounds, seed;
    uint64_t until_ns;    /* then it ends, rounds or not */
    uint64_t longest_ns;  /* a session's life */
    uint64_t patience_ns; /* a gathered round that is not released for so long is stuck */
    uint32_t intensity;   /* one in so many points holds a thread up; 0: it changes from session to session */
    bool deaths;          /* daemons die, freeze and are adopted; submits fail */
    bool early;           /* seeded fault: regions are adopted whose owner is not gone */
    int maps;             /* 1: engine and daemon share one. 2: a map each, and the thread sanitizer sees nothing */
};
extern struct stress_options stress_options;

struct stress_counts {
    _Atomic uint64_t rounds, ok, rows, sessions, adoptions, regions, kills, freezes, failed, stopped, context_only, checks, wraps, most_late_ns;
    _Atomic uint64_t decided[HF_VERDICT_MAX];
};
extern struct stress_counts stress_counts;

/* ---- options.c ---- */

bool stress_parse(int argc, char **argv);
/* One line of JSON. */
void stress_report(void);

/* ---- points.c ---- */

struct stress_daemon {
    struct hfd_loop *loop;
    uint64_t session;
    int event_fd;
    _Atomic int killing;        /* points until it dies; 0: it lives */
    _Atomic uint64_t freeze_ns; /* it stands still for so long at its next point */
    _Atomic int dead;           /* it died: nothing was put in order */
    _Atomic int unmapped;       /* its map is gone, and its socket: it ended by itself */
    struct stress_link *links;  /* the keeper's: those given and not returned */
    uint64_t tag;
};

uint64_t stress_random(void);                /* this thread's */
void stress_intensity(uint32_t one_in);     /* a thread is held up at one point of so many, a power of two; 0: never */
void stress_starting(struct stress_daemon *d); /* the next round loop to start is this one's */
void stress_started(void);                     /* returns once it has started */
struct stress_daemon *stress_self(void);     /* the daemon whose loop this thread is, or NULL */

/* ---- oracle.c: what must hold, checked where it is done ---- */

struct stress_region {
    _Atomic int used;
    uint64_t inode;
    struct hf_region map; /* the engine's */
    uint32_t base;        /* the first round is the one after */
    int maps;
    _Atomic int failing;  /* a submit was made to fail: what is half enqueued is consumed without having been gathered */
    _Atomic uint64_t winner[WINNERS];
};
extern struct stress_region stress_regions[REGIONS];
extern _Thread_local bool stress_private_map; /* the next map is nobody else's: the keeper's, of a region that is not known yet */

/* Ends the process: the first violation says enough. */
__attribute__((noreturn, format(printf, 1, 2))) void stress_violation(const char *format, ...);
struct stress_region *stress_region_at(const void *base);
/* A daemon died with its map. */
void stress_map_drop(const struct hf_region *r);
int64_t stress_id(uint64_t session, uint32_t t, uint32_t i);
unsigned char stress_byte(uint32_t slot, uint32_t generation, int64_t position);
int32_t stress_token(uint32_t slot, uint32_t generation, int64_t position);
/* The engine's stream, with checks in it. */
const struct hfe_stream *stress_stream(struct hfs_stream *s);

/* ---- monitor.c ---- */

void *stress_monitor(void *stop);

/* ---- worker.c ---- */

struct stress_link;
/* Gives the daemon's loop a new link. */
void stress_link_give(struct stress_daemon *d);
/* That one was returned; closes what the giver owns of it. */
void stress_link_returned(struct stress_daemon *d, uint64_t tag);
/* The daemon is dead: all of them. */
void stress_links_free(struct stress_daemon *d);

/* ---- engineside.c ---- */

struct stress_engine {
    struct hfs_stream *stream;
    struct hfe_spare *spare;
    _Atomic(struct hfe_session *) offered; /* the keeper's */
    _Atomic(struct hfe_session *) taken;   /* the engine thread's */
    _Atomic int sync;                      /* the offered session's rounds are synchronous */
    _Atomic int fail;                      /* a stream operation is to fail */
    _Atomic int over;
};

void *stress_engine_thread(void *engine);

#endif
