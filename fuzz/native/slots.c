/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what a daemon takes in from an engine's slot: the CPU header, the GPU's arrays, and the ROUND that is made of them.
 * What the daemon has no business reading is poisoned, the CPU header too once it was taken: it could change meanwhile.
 */
#include "regions.h"
#include "roundwire.h"

#include <sanitizer/asan_interface.h>

#define SESSION UINT64_C(0x5e55104d)

static struct hf_region regions[N_GEOMETRIES];
static volatile unsigned read_sum;

/* A sound header, table and arrays, from few bytes: most of an input is to get past the first checks. */
static void fill(struct cursor *c, const struct hf_region *r, uint32_t t, uint8_t flags)
{
    const struct hf_geometry *g = &r->geometry;
    struct hf_round *round = hf_round_of(r, t);
    struct hf_request *q = hf_requests_of(round);
    unsigned char *slot = (unsigned char *)round;
    uint32_t n = 1 + cursor_u8(c) % g->max_requests, rows = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint8_t shape = cursor_u8(c);

        rows += shape >> 6 == 3; /* a gap */
        q[i] = (struct hf_request){.request_slot = i, .generation = 1, .batch_index = i, .first_row = rows, .rows = shape & 7,
                                   .flags = shape >> 3 & 3};
        rows += q[i].rows;
        memcpy(slot + r->layout.num_rejected + i * 4, &(int32_t){shape >> 5 & 3}, 4);
        memcpy(slot + r->layout.num_sampled + i * 4, &(int32_t){shape >> 4 & 1}, 4);
        memcpy(slot + r->layout.last_sampled + i * 8, &(int64_t){cursor_u8(c)}, 8);
        memcpy(slot + r->layout.next_prefill + i * 4, &(int32_t){cursor_u8(c)}, 4);
    }
    *round = (struct hf_round){.round = t, .session = SESSION, .flags = flags & 1, .n_requests = n, .n_rows = rows};
    round->ring_bytes = flags & 2 ? g->ring_bytes / 2 : g->ring_bytes;
    round->ring_offset = flags & 2 ? cursor_u16(c) / 128 * 128 : 0;
}

/* Numbers anywhere in the slot, as the input has them: small ones, or whole. */
static void spoil(struct cursor *c, const struct hf_region *r, uint32_t t)
{
    size_t header = sizeof(struct hf_round) + r->geometry.max_requests * sizeof(struct hf_request);

    for (int i = cursor_u8(c) & 7; i > 0; i--) {
        uint8_t how = cursor_u8(c);
        size_t span = how & 1 ? r->layout.slot_stride : header, width = how & 2 ? 8 : 4;
        size_t at = cursor_u16(c) % (span / 4) * 4;
        uint64_t value = how & 4 ? cursor_number(c, width) : how & 8 ? UINT64_MAX - cursor_u8(c) : cursor_u8(c);

        if (at + width <= r->layout.slot_stride)
            memcpy(hf_slot_of(r, t) + at, &value, width);
    }
}

/* docs/CONTRACT.md: what a ROUND of this session may say, and that it adds up. */
static void judge(const struct hfd_wire *w)
{
    const struct hf_geometry *g = &w->region->geometry;
    const struct hfd_outgoing *m = &w->message;
    struct hw_header h;
    struct hw_round round;
    uint64_t rows = 0, piece_bytes = 0;
    unsigned sum = 0;

    MUST(m->head_bytes <= w->head_capacity && m->head_bytes >= sizeof(h) + sizeof(round) && m->two_parts);
    memcpy(&h, m->head, sizeof(h));
    memcpy(&round, (const unsigned char *)m->head + sizeof(h), sizeof(round));
    MUST(h.type == HW_ROUND && h.session == SESSION && h.round == w->round.round && h.body_bytes == m->head_bytes - sizeof(h));
    MUST(round.n_requests >= 1 && round.n_requests <= g->max_requests && round.row_bytes == g->row_bytes &&
         round.drafts == g->drafts && !(round.flags & ~1u) && !round.reserved);
    for (uint32_t i = 0; i < round.n_requests; i++) {
        struct hw_request q;

        memcpy(&q, (const unsigned char *)m->head + sizeof(h) + sizeof(round) + i * sizeof(q), sizeof(q));
        MUST(q.request_slot < g->state_slots && !(q.flags & ~1u));
        MUST(q.flags ? q.anchor >= 0 && q.anchor < g->vocab && !round.flags : q.anchor == -1);
        rows += q.rows;
    }
    MUST(rows == round.n_rows && rows <= w->round.n_rows);
    MUST(m->head_bytes == sizeof(h) + sizeof(round) + round.n_requests * sizeof(struct hw_request) + rows * 12);
    MUST(m->n_pieces <= g->max_requests && m->rows_bytes == rows * g->row_bytes);
    for (uint32_t i = 0; i < m->n_pieces; i++) {
        const unsigned char *data = m->pieces[i].data;

        piece_bytes += m->pieces[i].bytes;
        for (size_t at = 0; at < m->pieces[i].bytes; at++)
            sum += data[at];
    }
    read_sum = sum;
    MUST(piece_bytes == m->rows_bytes);
}

static void take(const struct hf_region *r, uint32_t t)
{
    unsigned char *slot = hf_slot_of(r, t), *ring = r->base + r->layout.rows;
    struct hfd_wire w;
    const char *fault;

    MUST(hfd_wire_init(&w, r, SESSION) == 0);
    ASAN_POISON_MEMORY_REGION(r->base, r->layout.bytes);
    ASAN_UNPOISON_MEMORY_REGION(slot, r->layout.slot_stride);
    fault = hfd_wire_take(&w, t);
    if (!fault && w.empty) {
        MUST(w.round.n_requests == 0 && w.round.n_rows == 0 && !w.context_only);
    } else if (!fault) {
        ASAN_POISON_MEMORY_REGION(slot, r->layout.gpu_header);
        ASAN_UNPOISON_MEMORY_REGION(ring + w.round.ring_offset, w.round.ring_bytes);
        fault = hfd_wire_build(&w);
        if (!fault)
            judge(&w);
    }
    MUST(!fault || fault[0]);
    ASAN_UNPOISON_MEMORY_REGION(r->base, r->layout.bytes);
    hfd_wire_free(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct cursor c = {data, data + bytes};
    uint8_t first = cursor_u8(&c);
    struct hf_region *r = &regions[first % N_GEOMETRIES];
    uint32_t t = first & 0x80 ? 0xffffffff : 3;
    size_t raw;
    const uint8_t *at;

    if (!r->base)
        region_in_memory(&geometries[first % N_GEOMETRIES], r);
    memset(hf_slot_of(r, t), 0, r->layout.slot_stride);
    if (first & 0x40) {
        at = cursor_bytes(&c, r->layout.slot_stride, &raw);
        memcpy(hf_slot_of(r, t), at, raw);
    } else {
        fill(&c, r, t, first >> 4 & 3);
    }
    spoil(&c, r, t);
    take(r, t);
    return 0;
}
