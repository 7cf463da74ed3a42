/* SPDX-License-Identifier: Apache-2.0 */
#include "gather.h"

#include <errno.h>

static int copy(struct hfe_session *e, void *to, const void *from, uint64_t bytes, enum hfe_copy kind)
{
    if (bytes == 0)
        return 0;
    return e->stream.copy2d(e->stream.context, to, bytes, from, bytes, bytes, 1, kind);
}

/* Rows of the batch, source by source, side by side to rows of row_bytes. */
static int copy_rows(struct hfe_session *e, unsigned char *to, const struct hfe_batch *b, uint32_t first, uint32_t rows,
                     enum hfe_copy kind)
{
    uint64_t column = 0;

    for (uint32_t i = 0; i < b->n_sources; i++) {
        const struct hfe_source *s = &b->sources[i];
        const unsigned char *from = (const unsigned char *)s->from + (uint64_t)first * s->pitch;
        int r = e->stream.copy2d(e->stream.context, to + column, e->region.geometry.row_bytes, from, s->pitch, s->width, rows, kind);

        if (r < 0)
            return r;
        column += s->width;
    }
    return 0;
}

static int gather_from_batch(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_piece *piece, uint32_t at,
                             const struct hf_ring_span *span, unsigned char *ring)
{
    uint64_t row_bytes = e->region.geometry.row_bytes;
    int r;

    r = copy(e, ring + span->positions + at * sizeof(int64_t), b->positions + piece->from, piece->rows * sizeof(int64_t),
             HFE_COPY_TO_HOST);
    if (r < 0)
        return r;
    r = copy(e, ring + span->tokens + at * sizeof(int32_t), b->tokens + piece->from, piece->rows * sizeof(int32_t), HFE_COPY_TO_HOST);
    if (r < 0)
        return r;
    return copy_rows(e, ring + span->rows + at * row_bytes, b, piece->from, piece->rows, HFE_COPY_TO_HOST);
}

static int gather_from_backlog(struct hfe_session *e, const struct hfe_piece *piece, uint32_t at,
                               const struct hf_ring_span *span, unsigned char *ring)
{
    const struct hfe_backlog *from = &e->backlog;
    uint64_t row_bytes = e->region.geometry.row_bytes;
    int r;

    r = copy(e, ring + span->positions + at * sizeof(int64_t), from->positions + piece->from * sizeof(int64_t),
             piece->rows * sizeof(int64_t), HFE_COPY_TO_HOST);
    if (r < 0)
        return r;
    r = copy(e, ring + span->tokens + at * sizeof(int32_t), from->tokens + piece->from * sizeof(int32_t),
             piece->rows * sizeof(int32_t), HFE_COPY_TO_HOST);
    if (r < 0)
        return r;
    return copy(e, ring + span->rows + at * row_bytes, from->rows + piece->from * row_bytes, piece->rows * row_bytes, HFE_COPY_TO_HOST);
}

static int gather_pieces(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_planned *round)
{
    unsigned char *ring = e->region.base + e->region.layout.rows + round->ring_offset;
    struct hf_ring_span span;
    uint32_t at = 0;
    int r = 0;

    hf_ring_span_of(&e->region.geometry, round->n_rows, &span);
    for (uint32_t i = 0; i < round->n_pieces && r == 0; i++) {
        const struct hfe_piece *piece = &e->plan.piece[round->first_piece + i];

        if (piece->backlog)
            r = gather_from_backlog(e, piece, at, &span, ring);
        else
            r = gather_from_batch(e, b, piece, at, &span, ring);
        at += piece->rows;
    }
    return r;
}

/* What only the GPU knows when the round is enqueued. num_rejected says which rows are valid; the rest, where drafts start. */
static int gather_header(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_planned *round, uint32_t t)
{
    const struct hf_layout *l = &e->region.layout;
    const struct hf_geometry *g = &e->region.geometry;
    unsigned char *slot = hf_slot_of(&e->region, t);
    int r;

    if (!round->main || b->n_requests == 0)
        return 0;
    r = copy(e, slot + l->num_rejected, b->num_rejected, b->n_requests * sizeof(int32_t), HFE_COPY_TO_HOST);
    if (r < 0 || !e->plan.drafting)
        return r;
    r = copy(e, slot + l->num_sampled, b->num_sampled, b->n_requests * sizeof(int32_t), HFE_COPY_TO_HOST);
    if (r < 0)
        return r;
    r = copy(e, slot + l->last_sampled, b->last_sampled, g->state_slots * sizeof(int64_t), HFE_COPY_TO_HOST);
    if (r < 0)
        return r;
    return copy(e, slot + l->next_prefill, b->next_prefill, g->state_slots * sizeof(int32_t), HFE_COPY_TO_HOST);
}

int hfe_gather_rows(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_planned *round, uint32_t t)
{
    int r = gather_header(e, b, round, t);

    return r < 0 ? r : gather_pieces(e, b, round);
}

/* gathered := t, and where drafts are wanted a wait for released >= t. */
static int park(struct hfe_session *e, uint32_t t, bool wait)
{
    const struct hfe_stream *s = &e->stream;
    _Atomic uint32_t *gathered = &e->region.engine->gathered.value;
    _Atomic uint32_t *released = &e->region.shared->released.value;
    int r;

    if (s->stamp) {
        r = s->stamp(s->context, hf_gathered_ns_of(&e->region, t));
        if (r < 0)
            return r;
    }
    if (!wait)
        return s->write32(s->context, gathered, t);
    if (s->write_wait32 && !e->config.unbatched)
        return s->write_wait32(s->context, gathered, t, released, t);
    r = s->write32(s->context, gathered, t);
    if (r < 0)
        return r;
    return s->wait32(s->context, released, t);
}

int hfe_gather_reply(struct hfe_session *e, const struct hfe_batch *b, uint32_t t)
{
    uint64_t bytes = (uint64_t)b->n_requests * e->region.geometry.drafts * sizeof(int64_t);

    return copy(e, b->drafts_out, hf_reply_of(&e->region, t) + e->region.layout.reply_ids, bytes, HFE_COPY_TO_DEVICE);
}

int hfe_gather_round(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_planned *round, uint32_t t)
{
    bool waits = !(round->flags & HF_ROUND_CONTEXT_ONLY);
    int r;

    r = hfe_gather_rows(e, b, round, t);
    if (r < 0)
        return r;
    r = park(e, t, waits);
    if (r < 0)
        return r;
    if (waits) {
        r = hfe_gather_reply(e, b, t);
        if (r < 0)
            return r;
    }
    return e->stream.write32(e->stream.context, &e->region.engine->consumed.value, t);
}

int hfe_gather_deferral(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_deferral *d)
{
    struct hfe_backlog *to = &e->backlog;
    int r;

    r = copy(e, to->positions + d->start * sizeof(int64_t), b->positions + d->from, d->rows * sizeof(int64_t), HFE_COPY_ON_DEVICE);
    if (r < 0)
        return r;
    r = copy(e, to->tokens + d->start * sizeof(int32_t), b->tokens + d->from, d->rows * sizeof(int32_t), HFE_COPY_ON_DEVICE);
    if (r < 0)
        return r;
    return copy_rows(e, to->rows + (uint64_t)d->start * e->region.geometry.row_bytes, b, d->from, d->rows, HFE_COPY_ON_DEVICE);
}

int hfe_gather_legal(struct hfe_session *e, const struct hfe_batch *b)
{
    if (!b->drafts_out)
        return 0;
    return copy(e, b->drafts_out, e->legal, (uint64_t)b->n_requests * e->region.geometry.drafts * sizeof(int64_t), HFE_COPY_ON_DEVICE);
}
