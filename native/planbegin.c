/* SPDX-License-Identifier: Apache-2.0 */
/* Before the first plan: the memory that plans are made in, and whether a batch is one at all. */
#include "plan.h"

#include <errno.h>
#include <stdlib.h>

#define ROUNDS (HFE_MAX_CONTEXT_ROUNDS + 1)

int hfe_plan_init(struct hfe_plan *p, const struct hf_geometry *g, struct hfe_ring *ring, struct hfe_backlog *backlog)
{
    *p = (struct hfe_plan){.geometry = g, .ring = ring, .backlog = backlog, .max_pieces = ROUNDS * 2 * g->max_requests};
    p->request = calloc((size_t)ROUNDS * g->max_requests, sizeof(*p->request));
    p->piece = calloc(p->max_pieces, sizeof(*p->piece));
    p->deferral = calloc(2 * (size_t)g->max_requests, sizeof(*p->deferral)); /* twice: the backlog's end splits one */
    p->share = calloc(g->max_requests, sizeof(*p->share));
    if (p->request && p->piece && p->deferral && p->share)
        return 0;
    hfe_plan_done(p);
    return -ENOMEM;
}

void hfe_plan_done(struct hfe_plan *p)
{
    free(p->request);
    free(p->piece);
    free(p->deferral);
    free(p->share);
    p->request = NULL;
    p->piece = NULL;
    p->deferral = NULL;
    p->share = NULL;
}

bool hfe_plan_accepts(const struct hfe_plan *p, const struct hfe_batch *b)
{
    uint64_t width = 0, rows = 0;

    if (b->n_requests > p->geometry->max_requests || b->n_sources > HFE_MAX_SOURCES)
        return false;
    for (uint32_t i = 0; i < b->n_requests; i++) {
        if (b->requests[i].request_slot >= p->geometry->state_slots)
            return false;
        rows += b->requests[i].rows;
    }
    if (rows > INT32_MAX) /* rows are counted in 32 bits from here on */
        return false;
    for (uint32_t i = 0; i < b->n_sources; i++)
        width += b->sources[i].width;
    if (b->drafts_out && !(b->num_sampled && b->num_rejected && b->last_sampled && b->next_prefill))
        return false;
    return !rows || (width == p->geometry->row_bytes && b->positions && b->tokens && b->num_rejected);
}
