/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's half: regions that outlive their sessions; of a session submit, watchdog, verdicts. One thread, the engine
 * thread, submits; the watchdog is its own thread; any thread may read. Nothing here blocks the submitting thread but
 * hfe_submit_sync.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include "hostflag.h"
#include "stream.h"

/* cffi:begin */
#define HFE_MAX_SOURCES 8
#define HFE_MAX_CONTEXT_ROUNDS 4 /* context-only rounds that one submit may put before its drafting round */

/* A 2D device array: row i of the batch is width bytes at from + i * pitch. Sources side by side make up a row. */
struct hfe_source {
    const void *from;
    uint64_t pitch;
    uint32_t width;
    uint32_t reserved;
};

#define HFE_DRAFT 1   /* wants drafts for its next step */
#define HFE_PREFILL 2 /* its rows are prompt: all valid, only the newest window of them matter, they may be deferred */

/* One request of the step, in batch order. */
struct hfe_request {
    uint32_t request_slot;
    uint32_t generation; /* changes whenever the slot changes hands */
    uint32_t first_row;  /* within the batch */
    uint32_t rows;       /* scheduled; of a decode the last num_rejected are not valid */
    uint32_t flags;      /* HFE_* */
    uint32_t to_come;    /* prompt tokens after this chunk; window or more: nothing of this chunk is shipped */
};

/* A step. Every pointer but requests and sources is device memory that keeps its content until the stream is past it. */
struct hfe_batch {
    uint32_t n_requests;
    uint32_t n_sources;
    const struct hfe_request *requests;
    const struct hfe_source *sources;
    const int64_t *positions;    /* [batch rows] */
    const int32_t *tokens;       /* [batch rows] */
    const int32_t *num_sampled;  /* [n_requests] */
    const int32_t *num_rejected; /* [n_requests] */
    const int64_t *last_sampled; /* [state_slots], by request_slot */
    const int32_t *next_prefill; /* [state_slots], by request_slot */
    int64_t *drafts_out;         /* [n_requests][drafts], batch order; NULL: context-only */
    uint32_t empty;              /* 1, where n_requests is 0: a round all the same. Nothing is copied and no worker asked */
    uint32_t reserved;
};

/* What a submit did. */
struct hfe_ticket {
    uint32_t round;          /* the drafting round; meaningless unless drafting */
    uint32_t drafting;       /* 1: drafts_out will hold this round's reply. 0: target-only step */
    uint32_t skip;           /* enum hf_skip: why there is no drafting round; HF_SKIP_NONE where nobody asked for drafts */
    uint32_t context_rounds; /* context-only rounds: before the drafting round, or instead of it */
    uint32_t first_round;    /* of the context_rounds + drafting rounds that were made, one after the other */
    uint32_t rows;           /* shipped by all of them */
    uint32_t rows_deferred;  /* waiting for the ring now, in all */
};

struct hfe_config {
    uint64_t session;
    uint64_t deadline_ns;     /* a gathered round is released within this and two ticks */
    uint64_t tick_ns;         /* watchdog, while rounds are in flight */
    uint64_t starved_ns;      /* no submit when the watchdog's last tick is older */
    uint64_t beat_limit_ns;   /* lost when the beat stood still for this much of the watchdog's own running time; 0: never */
    uint32_t expiries_limit;  /* lost after so many expiries with no round finished between; 0: never */
    int socket;               /* the session's socket, duplicated here: POLLHUP means that the daemon is gone. -1: none */
    int loss_fd;              /* eventfd, duplicated here: written once, when the session is lost. -1: none */
    int realtime;             /* 1: try SCHED_FIFO for the watchdog */
    int unbatched;            /* 1: write and wait are two operations even where the stream has one for both */
    uint64_t stream_limit_ns; /* synchronous rounds: the submit fails where the stream takes longer to get past its copies */
};

/* A snapshot for people; the counters of hf_stats are read through it too. */
struct hfe_status {
    uint32_t submitted, gathered, consumed, released, retired;
    uint32_t lost;            /* enum hf_loss */
    uint32_t phase;           /* enum hf_phase */
    uint32_t in_flight;
    uint64_t ticks;
    uint64_t lost_ns;         /* when the loss was seen; 0 */
    uint64_t expired;         /* by this watchdog */
    uint64_t watchdog_late_ns; /* the longest gap between two ticks while rounds were in flight, less the tick */
    uint64_t rounds[16];      /* by verdict: hf_stats */
    uint64_t skipped[16];
    uint64_t context_only, rows_shipped, rows_deferred, rows_left_out;
    int watchdog_realtime;    /* 1: it got SCHED_FIFO */
    int lock_error;           /* 0: the region is locked in memory; else -errno of mlock */
};

struct hfe_stream; /* from hfs_ops, hfc_ops */
struct hfe_region;
/* Maps the region behind fd (checked here again; the fd stays the caller's) and makes it known to the stream, which must outlive
   it. Blocks: never on the engine thread. backlog_rows: prefill rows that can wait in device memory for the ring. Returns 0 or
   -errno, and *ret_reason in a static text. */
int hfe_region_open(int fd, const struct hfe_stream *s, uint32_t backlog_rows, struct hfe_region **ret_region, const char **ret_reason);
/* The memfd, for ATTACH; it stays the region's. */
int hfe_region_fd(const struct hfe_region *r);
/* At rest: no session on it, everything that was submitted is consumed. 0 and *ret_base, the last round; -EBUSY while it is
   not; -EIO where it never will be, since a submit failed half-way. */
int hfe_region_rest(const struct hfe_region *r, uint32_t *ret_base);
int hfe_region_poisoned(const struct hfe_region *r);
/* The lost word, while no session is on it: 0 before it is offered to a daemon, and only once its last owner is gone; 1 where
   that daemon is to let go again. */
void hfe_region_mark(struct hfe_region *r, uint32_t lost);
/* Words and counters; what is a session's own is 0. */
void hfe_region_status_of(const struct hfe_region *r, struct hfe_status *ret_status);
/* Lets the stream forget it, unmaps and frees it. -EBUSY where a session on it is not ended: then nothing is freed. */
int hfe_region_close(struct hfe_region *r);
/* In a child after a fork, instead of closing: the child has no map. Closes its copy of the fd. */
void hfe_region_forked(struct hfe_region *r);

struct hfe_session;
/* Begins a session on a region that is at rest: takes its counter as the base, starts the watchdog. Returns 0 or -errno, and
   *ret_reason in a static text. */
int hfe_open(struct hfe_region *r, const struct hfe_config *c, struct hfe_session **ret_session, const char **ret_reason);
/* Microseconds, or skipped. Engine thread. Returns 0 (see the ticket); -EINVAL where the batch is none, -EBUSY where the stream is
   being captured (nothing happened); another -errno where the stream could not be asked for that (nothing happened either), or where an
   operation on it failed: then the session is lost (HF_LOSS_SUBMIT) and its region is never used again.
   Whatever the ticket says, drafts_out (where given) will hold legal ids. */
int hfe_submit(struct hfe_session *e, const struct hfe_batch *b, struct hfe_ticket *ret_ticket);
/* The same, but waits: for the stream, for the reply (at most the deadline and two ticks), for its copy to drafts_out. Then the
   rounds that waited are decided and consumed. For a device whose stream cannot wait for a word. */
int hfe_submit_sync(struct hfe_session *e, const struct hfe_batch *b, struct hfe_ticket *ret_ticket);
/* A submit without a batch: ships what waits for the ring, as context-only rounds. For an engine that has nothing to do. */
int hfe_flush(struct hfe_session *e, struct hfe_ticket *ret_ticket);
int hfe_flush_sync(struct hfe_session *e, struct hfe_ticket *ret_ticket);
/* The verdict of a round of this session: HF_OPEN while it has none, -ESTALE where its slot went on. Never blocks. */
int hfe_verdict(const struct hfe_session *e, uint32_t round);
/* 1 once the stream has copied the round's reply, 0 before. */
int hfe_consumed(const struct hfe_session *e, uint32_t round);
/* What a round of this session shipped, while it is in its slot: its header, and its requests (room for max_requests).
   0 or -ESTALE. Engine thread. */
int hfe_round_table(const struct hfe_session *e, uint32_t round, struct hf_round *ret_round, struct hf_request *ret_requests);
/* The ids of a consumed drafting round that is still in its slot, for tests: those the stream copied where the verdict is
   HF_OK; else junk that may still change. Returns how many (n_requests * drafts), or -ESTALE, -EAGAIN, -ENOBUFS. */
int hfe_drafts(const struct hfe_session *e, uint32_t round, int64_t *ids, uint32_t capacity);
/* The record of a finished round, from the flight recorder. 0, or -ESTALE where it is not there (any more). */
int hfe_record(const struct hfe_session *e, uint32_t round, struct hf_record *ret_record);
/* Books what has finished since the last call into hf_stats and the recorder. Engine thread. Returns how many. */
int hfe_settle(struct hfe_session *e);
void hfe_status_of(const struct hfe_session *e, struct hfe_status *ret_status);
uint32_t hfe_word(const struct hfe_session *e, int id);
/* Gives the session up: no more submits, gathered rounds are released at once. Returns at once. */
void hfe_give_up(struct hfe_session *e, int loss);
/* Whether the watchdog of a lost session has ended: hfe_end will not wait then. */
int hfe_ended(const struct hfe_session *e);
/* No more submits. Waits until every round is decided and the stream has consumed all it was given (for half of timeout_ns;
   then it gives the session up, which releases them at once), and ends the watchdog: the region is another session's to take.
   -EBUSY, and nothing is ended, where the stream does not get there: the watchdog goes on, and it can be called again. Unless
   hfe_ended, only where nobody submits; one thread at a time. The socket stays the caller's. */
int hfe_end(struct hfe_session *e, uint64_t timeout_ns);
/* The same for a process that ends, beside whatever its threads are at: a submit that is under way is waited for, later ones are
   skipped. Gives nothing back, no thread, descriptor or region: a submit may still come to them. hfe_end may follow. */
int hfe_leave(struct hfe_session *e, uint64_t timeout_ns);
/* Frees a session that is ended, and no other: whoever may still be in a call on it keeps it from here. */
void hfe_free(struct hfe_session *e);
/* In a child after a fork, instead of ending it: closes the child's copies of its descriptors. There is no watchdog there, and
   no map: nothing else may be called. */
void hfe_forked(struct hfe_session *e);

/* Steps without any session. Engine thread. */
struct hfe_spare;
int hfe_spare_open(const struct hfe_stream *s, const struct hf_geometry *g, struct hfe_spare **ret_spare);
/* As hfe_submit, for want of a session: no round, legal ids to drafts_out. */
int hfe_spare_submit(struct hfe_spare *p, const struct hfe_batch *b, struct hfe_ticket *ret_ticket);
/* Steps that were skipped, rows that were left out; words are 0. */
void hfe_spare_status_of(const struct hfe_spare *p, struct hfe_status *ret_status);
void hfe_spare_close(struct hfe_spare *p);
/* cffi:end */

#endif
