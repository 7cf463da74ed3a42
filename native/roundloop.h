/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's round loop: one thread a session, in C, never holding the interpreter lock. It owns its map of the
 * region, its duplicate of the session's socket and, while it has one, the link to the worker. The control plane talks
 * to it by the functions below, which post a command and wake it, and hears from it by events and counters.
 *
 * Threads: hfd_loop_start, _link, _drain, _resume, _stop, _join, _free, _event are for one control thread (or callers
 * that exclude each other); hfd_loop_status, _counters, _histogram may be called by any thread until hfd_loop_free.
 * No function here blocks but hfd_loop_join.
 *
 * Life of a link: hfd_loop_link hands a transport over -> LINK_UP once the worker answered OPEN -> LINK_DOWN when the
 * connection is lost (the transport reconnects by itself, the loop sends OPEN again, LINK_UP follows) -> at last
 * LINK_RETURNED: the loop will never touch that transport or its sockets again, the giver may close them. Where the loop
 * gave it back because the link was no good (timeout, silence, flood, terminated context), LINK_WANTED follows: give a
 * new one. While the loop has no link that is up, gathered rounds end HF_DISCONNECTED at once (HF_REFUSED where the worker
 * refused the session); behind a link given in the place of one that was up they wait for it, half of the timeout. The loop starts without a link: give it one. While the breaker is open, rounds that could be sent
 * end HF_BREAKER at once, but for one probe after each cool-down.
 *
 * End of a loop: by hfd_loop_stop, or by itself (LOST, ENGINE_GONE, FAULT). In either case: LINK_RETURNED if it had a
 * link, region unmapped, socket closed - in this order - then STOPPED, the last event. Then join and free.
 */
#ifndef ROUNDLOOP_H
#define ROUNDLOOP_H

#include "histogram.h"
#include "hostflag.h"
#include "transport.h"

/* cffi:begin */
struct hfd_loop;
struct hfd_transport;

struct hfd_config {
    uint64_t session;            /* in every message, and in every round's header */
    uint64_t network_timeout_ns; /* from the hand-over to the transport to the reply: then HF_TIMEOUT */
    uint64_t spin_ns;            /* the longest spin at a time: on gathered, and behind a round on submitted */
    uint64_t nap_ns;             /* the shortest nap */
    uint64_t ping_ns;            /* at rest, a PING so long after the last word to or from the worker; 0: never */
    uint64_t ping_limit_ns;      /* nothing heard for so long after a PING: the link is returned and wanted anew */
    uint64_t open_limit_ns;      /* the same for OPEN without an answer; of both see patience.c */
    uint64_t reopen_ns;          /* at most so long after REFUSED, OPEN is sent again on the same connection: at first sooner; 0: never */
    uint32_t base;               /* the counter goes on: the session's first round is base + 1 */
    int socket;                  /* a duplicate of the session's socket. The loop's, once started: it closes it last. -1: none */
    int event_fd;                /* an eventfd: 1 is added whenever an event was queued. The caller's; open until joined. -1: none */
    uint32_t breaker_failures;   /* so many rounds in a row that failed (no reply in time, a bad one) open the breaker, and a lost connection does; 0: never */
    uint64_t breaker_cool_ns;    /* the first cool-down; doubled, up to 4 s, by each probe that fails */
};

enum hfd_breaker_state {
    HFD_BREAKER_CLOSED,
    HFD_BREAKER_OPEN,      /* rounds end HF_BREAKER at once */
    HFD_BREAKER_HALF_OPEN, /* one round is with the worker: its end decides */
    HFD_BREAKER_STATE_MAX
};

enum hfd_link_state {
    HFD_LINK_NONE,       /* no transport */
    HFD_LINK_CONNECTING, /* the transport is not connected (yet, or again) */
    HFD_LINK_OPENING,    /* OPEN is sent */
    HFD_LINK_UP,         /* OPENED came: rounds are sent */
    HFD_LINK_REFUSED,    /* REFUSED came */
    HFD_LINK_STATE_MAX
};

enum hfd_event_kind {
    HFD_EVENT_NONE,
    HFD_EVENT_LINK_UP,       /* body: of the worker's OPENED (JSON, as received, not checked) */
    HFD_EVENT_LINK_DOWN,     /* reason */
    HFD_EVENT_LINK_BARRED,   /* reason: somebody is there, but the transport's handshake failed (keys). Once a reason, see counters.links_barred */
    HFD_EVENT_LINK_REFUSED,  /* body: of the worker's REFUSED (JSON, not checked). Also where the link was up */
    HFD_EVENT_LINK_RETURNED, /* tag, reason: that link's sockets are the giver's again */
    HFD_EVENT_LINK_WANTED,   /* reason: give a new link. At most one until a link is given */
    HFD_EVENT_BREAKER_OPEN,  /* reason. Also where a probe failed */
    HFD_EVENT_BREAKER_PROBE, /* one round goes through */
    HFD_EVENT_BREAKER_CLOSED, /* reason */
    HFD_EVENT_BAD_GATHER,    /* reason: what the GPU wrote does not fit (first time only; see counters.bad_gathers) */
    HFD_EVENT_LOST,          /* the engine gave this session up: it set the lost word */
    HFD_EVENT_ENGINE_GONE,   /* POLLHUP: the engine closed its end of the socket, or died */
    HFD_EVENT_FAULT,         /* reason: a CPU header or a word that no sound engine writes; the session is over */
    HFD_EVENT_STOPPED,       /* the loop is over and has let go of everything. Always the last */
    HFD_EVENT_MAX
};

struct hfd_event {
    uint32_t kind;       /* enum hfd_event_kind */
    uint32_t body_bytes; /* at most HW_MAX_CONTROL_BYTES */
    uint64_t tag;        /* of the link it is about; 0 where it is about none */
    const void *body;    /* valid until the next hfd_loop_event or hfd_loop_free; NULL where there is none */
    const char *reason;  /* static text; NULL where there is none */
};

struct hfd_status {
    uint32_t link;       /* enum hfd_link_state */
    uint32_t phase;      /* enum hf_phase, as the region says; GONE once the loop is over */
    uint32_t done;       /* the last round that was retired, the base before the first */
    uint32_t stopped;    /* 1: the thread has let go of everything */
    uint32_t breaker;    /* enum hfd_breaker_state */
    int lock_error;      /* 0: the map is locked in memory; else -errno of mlock */
    int precise_error;   /* 0: the thread's timer slack is 1 ns; else -errno of prctl */
    uint64_t up_ns;      /* CLOCK_MONOTONIC when the link came up; 0 while it is not */
};

enum hfd_drop {
    HFD_DROP_STALE,     /* a reply to a round that is not (any more) waited for */
    HFD_DROP_SESSION,   /* another session's */
    HFD_DROP_MALFORMED, /* no header, another magic or version, sizes that do not add up, parts that should not be there */
    HFD_DROP_TYPE,      /* a type that a worker does not send, or not now */
    HFD_DROP_MAX
};

struct hfd_counters {
    uint64_t rounds[16];      /* rounds by the verdict that holds, enum hf_verdict; context-only ones included */
    uint64_t context_only;    /* of these: context-only rounds */
    uint64_t outvoted;        /* of these: the watchdog had decided before the loop did (EXPIRED, LOST) */
    uint64_t bad_gathers;     /* of these: not sent, since what the GPU wrote did not fit */
    uint64_t rows_sent;       /* valid rows handed to the transport */
    uint64_t rows_rejected;   /* rows of gathered rounds that were not valid */
    uint64_t messages_out, messages_in;
    uint64_t bytes_out, bytes_in; /* message bytes, heads included */
    uint64_t dropped[8];      /* messages from the worker by enum hfd_drop */
    uint64_t extra_parts;     /* message parts beyond the first: read and thrown away */
    uint64_t bad_replies;     /* replies to the round in flight that did not fit */
    uint64_t link_ups;        /* OPENED came */
    uint64_t link_downs;      /* a link that was up is not any more */
    uint64_t links_taken, links_returned, links_wanted;
    uint64_t links_barred;    /* the transport's handshakes with whoever is at the endpoint that failed: wrong keys, no worker */
    uint64_t opens, refusals, unknown_sessions, pings, pongs;
    uint64_t worker_changes;  /* OPENED came, of another worker than the one before */
    uint64_t breaker_opens, breaker_probes;
    uint64_t beats;
    uint64_t events_dropped;  /* LINK_UP, _DOWN, _REFUSED, BREAKER that found the queue full: see hfd_loop_status */
};

enum hfd_histogram_id {
    HFD_HISTOGRAM_ROUND,   /* gathered seen -> released; rounds that were decided OK and waited for a reply */
    HFD_HISTOGRAM_NETWORK, /* of these: hand-over to the transport -> reply there */
    HFD_HISTOGRAM_SEND,    /* of these: in the transport's send, copies into messages included */
    HFD_HISTOGRAM_OWN,     /* of these: round less network */
    HFD_HISTOGRAM_WAKEUP,  /* gathered -> seen: by the stream's clock where it has one, else since the look before (an upper bound) */
    HFD_HISTOGRAM_GATHER,  /* submitted -> gathered seen; every round */
    HFD_HISTOGRAM_MAX
};

/* Checks and maps the region behind region_fd (which stays the caller's and may be closed), locks it in memory if
   permitted, sets retired to the base and the phase to running, and starts the thread with every signal blocked. Returns
   0, or -errno and *ret_reason (a static text): then nothing is running and the socket is still the caller's. */
int hfd_loop_start(int region_fd, const struct hfd_config *c, struct hfd_loop **ret_loop, const char **ret_reason);
/* Hands a link over. open: the whole OPEN message, header included, copied here; sent at every new connection. tag: the
   giver's name for the link. A link the loop has already is returned first. Returns 0: the transport is the loop's.
   Else it stays the caller's: -EBUSY (a link that was given before is not taken yet), -ESHUTDOWN (the loop is over),
   -EINVAL, -ENOMEM. */
int hfd_loop_link(struct hfd_loop *l, struct hfd_transport *transport, uint64_t tag, const void *open, uint32_t open_bytes);
/* The round in flight ends as it would; every later one HF_DRAINING. The phase word says so to the engine. */
void hfd_loop_drain(struct hfd_loop *l);
void hfd_loop_resume(struct hfd_loop *l);
/* Ends the loop within milliseconds: a gathered round is released HF_DRAINING, ungathered ones are left to the engine's
   watchdog. close: a whole CLOSE message, copied, sent first as far as that goes without waiting (give the socket a small
   LINGER when you close it, or it may not get out); NULL: none. Again, or after the end: nothing happens. */
int hfd_loop_stop(struct hfd_loop *l, const void *close, uint32_t close_bytes);
/* Waits for the thread to end. 0, or -ETIMEDOUT. */
int hfd_loop_join(struct hfd_loop *l, uint64_t timeout_ns);
/* After join (before: -EBUSY, nothing happens). Events that nobody took are gone. */
int hfd_loop_free(struct hfd_loop *l);
/* Takes the oldest event: 1, or 0 where there is none. */
int hfd_loop_event(struct hfd_loop *l, struct hfd_event *ret_event);
void hfd_loop_status(const struct hfd_loop *l, struct hfd_status *ret_status);
void hfd_loop_counters(const struct hfd_loop *l, struct hfd_counters *ret_counters);
/* 0, or -EINVAL for an id that is none. */
int hfd_loop_histogram(const struct hfd_loop *l, int id, struct hfd_histogram_view *ret_view);
/* cffi:end */

#endif
