/* SPDX-License-Identifier: Apache-2.0 */
/* A planned step as stream operations. Each function returns 0, or the -errno of the first operation that failed. */
#ifndef GATHER_H
#define GATHER_H

#include "session.h"

/* Round t: header and rows to the region, gathered := t, the wait and the reply's copy where it drafts, consumed := t. */
int hfe_gather_round(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_planned *round, uint32_t t);
/* The first part of that, for a round that the CPU takes from there: header and rows to the region. */
int hfe_gather_rows(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_planned *round, uint32_t t);
/* The reply's copy. */
int hfe_gather_reply(struct hfe_session *e, const struct hfe_batch *b, uint32_t t);
/* A whole round, waited for (syncround.c). */
int hfe_sync_round(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_planned *round, uint32_t t);
/* Rows of the batch to the backlog. */
int hfe_gather_deferral(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_deferral *d);
/* The ids of a step without a round to drafts_out, if there is one: legal, so that the engine can embed them, and rejected
   like any wrong draft. */
int hfe_gather_legal(struct hfe_session *e, const struct hfe_batch *b);

#endif
