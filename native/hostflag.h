/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared region: its layout and its words. This file is the only definition; Python reads every constant,
 * offset and the layout hash from it through cffi. Anything changed here changes HF_LAYOUT_VERSION.
 *
 * Who writes what, and why each write is seen in time, is argued in docs/ORDERING.md under the names used here.
 * The sections between "cffi:" marks are read by build_ffi.py: plain C declarations only.
 */
#ifndef HOSTFLAG_H
#define HOSTFLAG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if ATOMIC_INT_LOCK_FREE != 2 || ATOMIC_LLONG_LOCK_FREE != 2
#error "32- and 64-bit atomics must be lock-free: they are shared between processes and with a GPU"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the region and the network protocol are little-endian"
#endif

/* cffi:begin */
#define HF_LAYOUT_VERSION 2
#define HF_LINE 128            /* bytes between two hot words: an adjacent-line pair on x86, a line on some Arm cores */
#define HF_PART_ALIGN 65536    /* parts are mapped with different rights, so aligned for the largest page in use */
#define HF_MIN_SLOTS 4         /* a power of two, never 6: t mod S must not jump where the counter wraps */
#define HF_MAX_SLOTS 64
#define HF_MAX_REQUESTS 256
#define HF_MAX_STATE_SLOTS 4096
#define HF_MAX_DRAFTS 64
#define HF_MAX_ROW_BYTES 1048576
#define HF_MAX_REGION_BYTES 2147483648
#define HF_BEAT_EVERY_MS 80     /* the daemon steps its beat so often, so a beat may be so old when the daemon stops */
#define HF_RECORDS 256         /* flight recorder: the last rounds, one record each */

/* What engine and daemon agree on in HELLO. The creator writes it into the header, once. */
struct hf_geometry {
    uint32_t slots;        /* S: rounds that may be in flight */
    uint32_t max_requests; /* requests in one round */
    uint32_t state_slots;  /* the engine's request slots: length of last_sampled and next_prefill */
    uint32_t row_bytes;    /* bytes of one row */
    uint32_t window;       /* newest rows of a request that matter to the drafter */
    uint32_t drafts;       /* k: token ids a request in a reply */
    uint32_t vocab;        /* every id is in [0, vocab) */
    uint32_t extra_bytes;  /* opaque bytes a request in a reply; 0 for none */
    uint64_t ring_bytes;   /* size of the rows part */
};

/* Where things are, computed from the geometry alone (hf_layout_of). Bytes. */
struct hf_layout {
    /* parts, from the start of the region */
    uint64_t engine_words, shared_words, daemon_words, slots, replies, stats, rows, bytes;
    /* one slot: CPU header at 0, GPU header at gpu_header; its arrays from the start of the slot */
    uint64_t slot_stride, gpu_header, num_sampled, num_rejected, last_sampled, next_prefill;
    /* one reply: timing at 0, then int64 ids[max_requests][drafts], then extra[max_requests][extra_bytes] */
    uint64_t reply_stride, reply_ids, reply_extra;
};

/* How a round ended. HF_OPEN: it has not. Exactly one other value a round; it never changes. */
enum hf_verdict {
    HF_OPEN,
    HF_OK,           /* the reply is this round's own, whole */
    HF_EXPIRED,      /* watchdog: past the deadline */
    HF_LOST,         /* watchdog: the session is lost */
    HF_TIMEOUT,      /* daemon: no reply within the network timeout */
    HF_BREAKER,      /* daemon: the circuit breaker is open */
    HF_DISCONNECTED, /* daemon: no worker */
    HF_SEND_ERROR,   /* daemon: the transport did not take the round */
    HF_BAD_REPLY,    /* daemon: a reply that does not fit the round */
    HF_REFUSED,      /* daemon: the worker said no */
    HF_DRAINING,     /* daemon: it is draining */
    HF_VERDICT_MAX
};

/* Why a submit made no round. */
enum hf_skip {
    HF_SKIP_NONE,
    HF_SKIP_NO_SESSION, /* not connected, lost or closing */
    HF_SKIP_SLOTS,      /* round t-S is not consumed or not retired */
    HF_SKIP_RING,       /* the rows do not fit the ring */
    HF_SKIP_WATCHDOG,   /* no watchdog tick lately: the deadline could not be kept */
    HF_SKIP_DRAINING,   /* the daemon is draining */
    HF_SKIP_NOTHING,    /* nothing to ship and nobody wants drafts */
    HF_SKIP_MAX
};

/* Why a session was lost. */
enum hf_loss {
    HF_LOSS_NONE,
    HF_LOSS_HANGUP,   /* the daemon's end of the socket is gone (POLLHUP) */
    HF_LOSS_BEAT,     /* the beat stood still */
    HF_LOSS_EXPIRIES, /* three expiries with no round finished between them */
    HF_LOSS_SUBMIT,   /* a stream operation failed in the middle of a submit */
    HF_LOSS_CLOSED,   /* the engine closed it */
    HF_LOSS_DRAINED,  /* planned: the daemon said that it drains or goes, then it was gone */
    HF_LOSS_GARBAGE,  /* a word that the daemon writes holds what it cannot */
    HF_LOSS_MAX
};

enum hf_phase { HF_PHASE_NONE, HF_PHASE_RUNNING, HF_PHASE_DRAINING, HF_PHASE_GONE, HF_PHASE_MAX };

/* Words, for hf_word_load: tests, status and dumps read them by name. */
enum hf_word_id {
    HF_WORD_SUBMITTED, HF_WORD_GATHERED, HF_WORD_CONSUMED, HF_WORD_LOST, HF_WORD_PARKED,
    HF_WORD_RELEASED, HF_WORD_RETIRED, HF_WORD_BEAT, HF_WORD_PHASE, HF_WORD_WAITING, HF_WORD_MAX
};

/* Round flags. */
#define HF_ROUND_CONTEXT_ONLY 1 /* ships rows; the stream does not wait and no reply comes */

/* Request flags. */
#define HF_REQUEST_DRAFT 1      /* wants drafts */
#define HF_REQUEST_ALL_VALID 2  /* every row is valid: num_rejected does not apply (prefill) */

/* One request of a round, in the CPU header. Its rows lie together; requests follow one another in the ring. */
struct hf_request {
    uint32_t request_slot; /* with generation: the worker's key. Also the index into last_sampled, next_prefill */
    uint32_t generation;
    uint32_t batch_index;  /* index into num_sampled and num_rejected */
    uint32_t first_row;    /* within the round */
    uint32_t rows;         /* shipped; the last num_rejected of them are not valid */
    uint32_t flags;        /* HF_REQUEST_* */
};

/* CPU header of a slot. requests[max_requests] follows it directly. */
struct hf_round {
    uint32_t round;
    uint32_t flags;        /* HF_ROUND_* */
    uint64_t session;
    uint32_t n_requests;   /* 0: an empty round. Nothing is shipped, the daemon decides it at once */
    uint32_t n_rows;
    uint64_t ring_offset;  /* from the start of the rows part: positions, tokens, rows (hf_ring_span) */
    uint64_t ring_bytes;
    uint64_t submitted_ns; /* CLOCK_MONOTONIC */
};

/* Written by the daemon at the start of a reply, before the verdict. CLOCK_MONOTONIC, 0 where it did not happen. */
struct hf_timing {
    uint32_t round;
    uint32_t reserved;
    uint64_t seen_ns;     /* the loop saw it gathered */
    uint64_t send_ns;     /* the transport was given the round */
    uint64_t sent_ns;     /* the transport had taken it */
    uint64_t replied_ns;  /* the reply was there */
    uint64_t decided_ns;  /* just before the swap */
};

/* Flight recorder: one finished round. */
struct hf_record {
    uint32_t round;
    uint32_t verdict;
    uint32_t n_requests;
    uint32_t n_rows;
    uint32_t flags;
    uint32_t reserved;
    uint64_t submitted_ns;
    uint64_t gathered_ns;  /* 0 where the stream cannot tell */
    struct hf_timing timing;
};

struct hf_header {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes; /* of this header */
    uint64_t layout_hash;
    struct hf_geometry geometry;
    struct hf_layout layout;
    uint64_t region_id[2]; /* random: tells two regions apart */
};

/* Where one round's rows lie within its piece of the ring: int64 positions[n], int32 tokens[n], bytes rows[n]. */
struct hf_ring_span {
    uint64_t positions, tokens, rows, bytes;
};
/* cffi:end */

#define HF_MAGIC UINT64_C(0x3130464831345644) /* "DV41HF01" */

struct hf_word {
    _Alignas(HF_LINE) _Atomic uint32_t value;
};
struct hf_verdict_word {
    _Alignas(HF_LINE) _Atomic uint64_t value; /* round in the upper half, enum hf_verdict in the lower */
};

/* Engine CPU and GPU write, the daemon maps them read-only. */
struct hf_engine_words {
    struct hf_word submitted; /* CPU: the round's stream operations are enqueued */
    struct hf_word gathered;  /* GPU: its rows are in the ring */
    struct hf_word consumed;  /* GPU: the reply has been copied */
    struct hf_word lost;      /* CPU: 1 = this session was given up; the daemon lets go */
    struct hf_word parked;    /* CPU: how many sleep in a futex on released (soft stream, synchronous rounds) */
};

/* Both sides write, by compare-and-swap only. */
struct hf_shared_words {
    struct hf_word released;
    struct hf_verdict_word verdict[HF_MAX_SLOTS];
};

struct hf_daemon_words {
    struct hf_word retired; /* the daemon will never touch this round again */
    struct hf_word beat;    /* a counter, not a time: at least one step in HF_BEAT_NS */
    struct hf_word phase;   /* enum hf_phase */
    struct hf_word waiting; /* 1 = the loop sleeps, or is about to, in a futex on submitted */
};

/* Engine counters and flight recorder: written by the engine thread alone, read by anybody. */
struct hf_stats {
    _Atomic uint64_t rounds[HF_VERDICT_MAX]; /* finished rounds by verdict */
    _Atomic uint64_t skipped[HF_SKIP_MAX];
    _Atomic uint64_t context_only;
    _Atomic uint64_t rows_shipped;           /* rows handed to the stream, rejected ones included */
    _Atomic uint64_t rows_deferred;          /* prefill rows that waited for the ring */
    _Atomic uint64_t rows_left_out;          /* rows that never left: contexts have a gap there */
    _Atomic uint64_t records;                /* written so far; the newest is records - 1 modulo HF_RECORDS */
    struct hf_record record[HF_RECORDS];
};

#define HF_BEAT_NS UINT64_C(100000000)

/* One side's view of a region. */
struct hf_region {
    unsigned char *base;
    struct hf_geometry geometry;
    struct hf_layout layout;
    struct hf_engine_words *engine;
    struct hf_shared_words *shared;
    struct hf_daemon_words *daemon;
    struct hf_stats *stats;
};

enum hf_side { HF_SIDE_ENGINE, HF_SIDE_DAEMON }; /* the engine maps all of it read-write, the daemon what it writes */

/* ---- layout (layout.c) ---- */

/* Returns NULL, or what is wrong with the geometry: a static text that names the field and its bounds. */
const char *hf_geometry_fault(const struct hf_geometry *g);
/* Returns 0 or -EINVAL (see hf_geometry_fault). */
int hf_layout_of(const struct hf_geometry *g, struct hf_layout *ret_layout);
/* A hash of every offset and size above: two builds that differ cannot meet. */
uint64_t hf_layout_hash(void);
void hf_ring_span_of(const struct hf_geometry *g, uint32_t n_rows, struct hf_ring_span *ret_span);

/* ---- region (region.c) ---- */

/* Creates a memfd: allocated, header and verdicts written, every counter at 0, sealed. Returns the fd or -errno. */
int hf_region_create(const struct hf_geometry *g);
/* Checks seals, size and header before anything is mapped. Returns 0 or -errno; *ret_reason says what, in a static text. */
int hf_region_check(int fd, struct hf_header *ret_header, const char **ret_reason);
/* Maps a checked region. Returns 0 or -errno. */
int hf_region_map(int fd, const struct hf_header *h, enum hf_side side, struct hf_region *ret_region);
void hf_region_unmap(struct hf_region *r);
/* Returns 0, or -errno where the pages could not be locked (RLIMIT_MEMLOCK). */
int hf_region_lock(const struct hf_region *r);
uint32_t hf_word_load(const struct hf_region *r, enum hf_word_id id);

/* ---- words (hostflag.c) ---- */

/* How far a is past b; cyclic, so that the counter's wrap is ordinary. */
static inline int32_t hf_past(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b);
}

static inline struct hf_round *hf_round_of(const struct hf_region *r, uint32_t t)
{
    return (struct hf_round *)(r->base + r->layout.slots + (t & (r->geometry.slots - 1)) * r->layout.slot_stride);
}

static inline struct hf_request *hf_requests_of(struct hf_round *round)
{
    return (struct hf_request *)(round + 1);
}

static inline unsigned char *hf_slot_of(const struct hf_region *r, uint32_t t)
{
    return (unsigned char *)hf_round_of(r, t);
}

/* GPU header: this and the arrays at layout.num_sampled ... layout.next_prefill. */
static inline uint64_t *hf_gathered_ns_of(const struct hf_region *r, uint32_t t)
{
    return (uint64_t *)(hf_slot_of(r, t) + r->layout.gpu_header);
}

static inline unsigned char *hf_reply_of(const struct hf_region *r, uint32_t t)
{
    return r->base + r->layout.replies + (t & (r->geometry.slots - 1)) * r->layout.reply_stride;
}

static inline _Atomic uint64_t *hf_verdict_of(const struct hf_region *r, uint32_t t)
{
    return &r->shared->verdict[t & (r->geometry.slots - 1)].value;
}

static inline uint64_t hf_verdict_pack(uint32_t t, enum hf_verdict v)
{
    return (uint64_t)t << 32 | (uint32_t)v;
}

uint64_t hf_now_ns(void); /* CLOCK_MONOTONIC */

/* The swap (t, OPEN) -> (t, v). True: this caller, and only it, decided the round. */
bool hf_decide(const struct hf_region *r, uint32_t t, enum hf_verdict v);
/* The round's verdict, HF_OPEN while there is none, or -ESTALE where the slot holds another round. */
int hf_verdict_load(const struct hf_region *r, uint32_t t);
/* Advances released to t: an atomic maximum. Wakes those parked in a futex. */
void hf_release(const struct hf_region *r, uint32_t t);
/* Sleeps until released >= t or timeout_ns has passed (0 or -ETIMEDOUT). Engine side: it counts itself in parked. */
int hf_released_wait(const struct hf_region *r, uint32_t t, uint64_t timeout_ns);

/* Doorbell. The engine rings after submitted := t; the daemon sleeps while submitted == seen, for at most timeout_ns.
   No ring is lost: each side writes its own word, fences, then reads the other's. */
void hf_doorbell_ring(const struct hf_region *r, uint32_t t);
void hf_doorbell_wait(const struct hf_region *r, uint32_t seen, uint64_t timeout_ns);
/* From another thread of the daemon: ends a doorbell wait early. May come just before the sleep: then it is missed. */
void hf_doorbell_nudge(const struct hf_region *r);

/* ---- nap (nap.c): when to look for gathered again ---- */

#define HF_NAP_WINDOW 7 /* rounds that an estimate is made of: odd, so that the median is one of them */

struct hf_nap {
    double expected_ns; /* time from submitted to gathered: the median of recent_ns */
    double error_ns;    /* expected error of that: mean absolute deviation, the odd one left out */
    double recent_ns[HF_NAP_WINDOW];
    uint64_t spin_ns; /* the longest spin at a time */
    uint64_t min_nap_ns, max_nap_ns;
    uint32_t learned;   /* rounds so far */
};

void hf_nap_init(struct hf_nap *n, uint64_t spin_ns, uint64_t min_nap_ns);
/* How long to sleep now, given the time since submitted; 0 = spin. */
uint64_t hf_nap_next(const struct hf_nap *n, uint64_t elapsed_ns);
void hf_nap_learn(struct hf_nap *n, uint64_t elapsed_ns);
/* Sets the thread's timer slack to 1 ns, so that a short nap is short. Returns 0 or -errno. */
int hf_nap_precise(void);
void hf_sleep_ns(uint64_t ns);
static inline void hf_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
