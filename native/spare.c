/* SPDX-License-Identifier: Apache-2.0 */
/* What a step is without a session: planned by the same rules, refused as a whole, its drafts legal ids. */
#include "session.h"

#include <errno.h>
#include <stdlib.h>

struct hfe_spare {
    struct hfe_stream stream;
    struct hf_geometry geometry;
    struct hfe_ring ring;       /* nothing is ever in it */
    struct hfe_backlog backlog; /* nor in this */
    struct hfe_plan plan;
    int64_t *legal; /* device memory */
    _Atomic uint64_t skipped[HF_SKIP_MAX], rows_left_out;
};

int hfe_spare_open(const struct hfe_stream *s, const struct hf_geometry *g, struct hfe_spare **ret_spare)
{
    struct hfe_spare *p;
    int r = -EINVAL;

    if (hf_geometry_fault(g))
        return r;
    p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->stream = *s;
    p->geometry = *g;
    hfe_ring_init(&p->ring, g->ring_bytes, g->slots, 0);
    r = hfe_backlog_init(&p->backlog, g, 0, NULL);
    if (r < 0)
        goto fail;
    r = hfe_plan_init(&p->plan, &p->geometry, &p->ring, &p->backlog);
    if (r < 0)
        goto fail;
    r = s->alloc(s->context, (uint64_t)g->max_requests * g->drafts * sizeof(int64_t), (void **)&p->legal);
    if (r < 0)
        goto fail;
    *ret_spare = p;
    return 0;
fail:
    hfe_spare_close(p);
    return r;
}

int hfe_spare_submit(struct hfe_spare *p, const struct hfe_batch *b, struct hfe_ticket *ret_ticket)
{
    uint64_t bytes = (uint64_t)b->n_requests * p->geometry.drafts * sizeof(int64_t);
    int r;

    if (!hfe_plan_accepts(&p->plan, b))
        return -EINVAL;
    r = p->stream.check ? p->stream.check(p->stream.context) : 0;
    if (r < 0)
        return r;
    hfe_plan_refuse(&p->plan, b, HF_SKIP_NO_SESSION);
    hfe_count(&p->skipped[p->plan.skip], 1);
    hfe_count(&p->rows_left_out, p->plan.left_out);
    *ret_ticket = (struct hfe_ticket){.skip = p->plan.skip};
    if (!b->drafts_out || bytes == 0)
        return 0;
    return p->stream.copy2d(p->stream.context, b->drafts_out, bytes, p->legal, bytes, bytes, 1, HFE_COPY_ON_DEVICE);
}

void hfe_spare_status_of(const struct hfe_spare *p, struct hfe_status *ret_status)
{
    *ret_status = (struct hfe_status){
        .rows_left_out = atomic_load_explicit(&p->rows_left_out, memory_order_relaxed),
    };
    for (int i = 0; i < HF_SKIP_MAX; i++)
        ret_status->skipped[i] = atomic_load_explicit(&p->skipped[i], memory_order_relaxed);
}

/* Device memory goes back in stream order. */
void hfe_spare_close(struct hfe_spare *p)
{
    if (p->legal)
        p->stream.free(p->stream.context, p->legal);
    hfe_plan_done(&p->plan);
    hfe_backlog_done(&p->backlog);
    free(p);
}
