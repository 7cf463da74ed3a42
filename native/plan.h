/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a submit ships, decided before anything is enqueued: which rows go in which round, and which wait. Arithmetic on
 * the engine thread alone; it touches neither the region nor the stream.
 *
 * Decodes come first: prefill takes only the ring room and the slots that this step and the next one do not need. A step is
 * one main round (all requests of the batch, in batch order) behind up to HFE_MAX_CONTEXT_ROUNDS context-only rounds, and
 * what found no room goes to the backlog. Rows of a request always leave in order.
 */
#ifndef PLAN_H
#define PLAN_H

#include "backlog.h"
#include "engine.h"
#include "ring.h"

/* Rows that lie together where they come from; behind the piece before it in the round. */
struct hfe_piece {
    uint32_t from; /* row within the batch or the backlog */
    uint32_t rows;
    uint32_t backlog; /* 1: from the backlog */
};

/* Rows of the batch that go to the backlog. */
struct hfe_deferral {
    uint32_t from, rows;
    uint32_t start; /* row within the backlog */
};

struct hfe_planned {
    uint32_t flags; /* HF_ROUND_* */
    uint32_t main;  /* 1: the batch's own round, with its GPU header */
    uint32_t first_request, n_requests; /* of hfe_plan.request */
    uint32_t first_piece, n_pieces;     /* of hfe_plan.piece */
    uint32_t n_rows;
    uint64_t ring_offset, ring_bytes;
};

/* What of a request of the batch is still to go. */
struct hfe_share {
    uint32_t first, rows; /* within the batch */
    uint32_t prefill;
    uint32_t main;        /* 1: goes in the main round */
    uint32_t held;        /* 1: older rows of it waited when the step began */
};

struct hfe_plan {
    const struct hf_geometry *geometry;
    struct hfe_ring *ring;
    struct hfe_backlog *backlog;
    /* the result */
    struct hfe_planned round[HFE_MAX_CONTEXT_ROUNDS + 1];
    struct hf_request *request;
    struct hfe_piece *piece;
    struct hfe_deferral *deferral;
    uint32_t n_rounds, n_requests, n_pieces, n_deferrals;
    uint32_t skip;     /* enum hf_skip: why there is no drafting round */
    uint32_t drafting; /* 1: the last round is the main one, and it waits */
    uint32_t shipped, deferred, left_out; /* rows */
    /* scratch */
    struct hfe_share *share;
    uint32_t max_pieces;
    uint32_t budget; /* context-only rounds that may still be made */
    uint32_t held;   /* requests of the batch whose prompt waits in the backlog: they do not decode with drafts yet */
};

/* Returns 0 or -ENOMEM. ring and backlog stay the caller's. */
int hfe_plan_init(struct hfe_plan *p, const struct hf_geometry *g, struct hfe_ring *ring, struct hfe_backlog *backlog);
void hfe_plan_done(struct hfe_plan *p);
/* Whether a batch is one at all. */
bool hfe_plan_accepts(const struct hfe_plan *p, const struct hfe_batch *b);
/* Plans a step; takes from ring and backlog. free_slots: rounds that can be submitted now. skip: HF_SKIP_NONE, or why no
   round may be made: then prefill rows wait, and decode rows are left out. */
void hfe_plan_make(struct hfe_plan *p, const struct hfe_batch *b, uint32_t free_slots, enum hf_skip skip);
/* A step whose session is gone or going: nothing leaves, nothing waits, everything is counted. */
void hfe_plan_refuse(struct hfe_plan *p, const struct hfe_batch *b, enum hf_skip skip);

#endif
