/* SPDX-License-Identifier: Apache-2.0 */
#include "roundwire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const unsigned char *ring_of(const struct hfd_wire *w)
{
    return w->region->base + w->region->layout.rows + w->round.ring_offset;
}

int hfd_wire_init(struct hfd_wire *w, const struct hf_region *region, uint64_t session)
{
    const struct hf_geometry *g = &region->geometry;
    uint64_t most_rows = g->ring_bytes / g->row_bytes;

    *w = (struct hfd_wire){.region = region, .session = session};
    w->head_capacity = sizeof(struct hw_header) + sizeof(struct hw_round) + g->max_requests * sizeof(struct hw_request) +
                       most_rows * (sizeof(int64_t) + sizeof(int32_t));
    w->requests = calloc(g->max_requests, sizeof(*w->requests));
    w->pieces = calloc(g->max_requests, sizeof(*w->pieces));
    w->head = malloc(w->head_capacity);
    if (w->requests && w->pieces && w->head)
        return 0;
    hfd_wire_free(w);
    return -ENOMEM;
}

void hfd_wire_free(struct hfd_wire *w)
{
    free(w->requests);
    free(w->pieces);
    free(w->head);
    *w = (struct hfd_wire){0};
}

static const char *check_round(const struct hfd_wire *w, uint32_t t)
{
    const struct hf_geometry *g = &w->region->geometry;
    const struct hf_round *round = &w->round;
    struct hf_ring_span span;

    if (round->round != t)
        return "a slot's header names another round";
    if (round->session != w->session)
        return "a slot's header names another session";
    if (round->flags & ~(uint32_t)HF_ROUND_CONTEXT_ONLY)
        return "a slot's header has unknown flags";
    if (round->n_requests > g->max_requests)
        return "a slot's header has more than max_requests";
    if (round->n_requests == 0 && (round->n_rows > 0 || round->flags & HF_ROUND_CONTEXT_ONLY))
        return "a slot's header has no requests, but is not an empty round's";
    if (round->ring_bytes > g->ring_bytes || round->ring_offset > g->ring_bytes - round->ring_bytes)
        return "a round's rows lie outside the ring";
    hf_ring_span_of(g, round->n_rows, &span);
    if (span.bytes > round->ring_bytes)
        return "a round has more rows than its piece of the ring holds";
    return NULL;
}

static const char *check_requests(const struct hfd_wire *w)
{
    const struct hf_geometry *g = &w->region->geometry;
    uint64_t rows = 0; /* where the next request may start */

    for (uint32_t i = 0; i < w->round.n_requests; i++) {
        const struct hf_request *q = &w->requests[i];

        if (q->request_slot >= g->state_slots)
            return "a request's slot is not below state_slots";
        if (q->batch_index >= g->max_requests)
            return "a request's batch index is not below max_requests";
        if (q->flags & ~(uint32_t)(HF_REQUEST_DRAFT | HF_REQUEST_ALL_VALID))
            return "a request has unknown flags";
        if (q->first_row < rows)
            return "a request's rows overlap those of the one before";
        rows = (uint64_t)q->first_row + q->rows;
        if (rows > w->round.n_rows)
            return "a request has rows that the round has not";
    }
    return NULL;
}

const char *hfd_wire_take(struct hfd_wire *w, uint32_t t)
{
    const struct hf_round *slot = hf_round_of(w->region, t);
    const char *fault;

    /* Copied first and checked in the copy: what is checked in the region could change before it is used. */
    memcpy(&w->round, slot, sizeof(w->round));
    fault = check_round(w, t);
    if (fault)
        return fault;
    memcpy(w->requests, slot + 1, w->round.n_requests * sizeof(*w->requests));
    w->context_only = w->round.flags & HF_ROUND_CONTEXT_ONLY;
    w->empty = w->round.n_requests == 0;
    return check_requests(w);
}

/* Each value that the GPU wrote is read once: the value that was checked is the value that is used. */
static int32_t gpu_int32(const struct hfd_wire *w, uint64_t array, uint32_t index)
{
    const unsigned char *at = hf_slot_of(w->region, w->round.round) + array + index * sizeof(int32_t);

    /* Relaxed: gathered, acquired by the caller, orders it ("rows, gathered"). */
    return atomic_load_explicit((const _Atomic int32_t *)at, memory_order_relaxed);
}

static int64_t gpu_int64(const struct hfd_wire *w, uint64_t array, uint32_t index)
{
    const unsigned char *at = hf_slot_of(w->region, w->round.round) + array + index * sizeof(int64_t);

    return atomic_load_explicit((const _Atomic int64_t *)at, memory_order_relaxed);
}

static const char *build_request(const struct hfd_wire *w, const struct hf_request *q, struct hw_request *ret_out)
{
    const struct hf_geometry *g = &w->region->geometry;
    const struct hf_layout *l = &w->region->layout;
    int32_t rejected = q->flags & HF_REQUEST_ALL_VALID ? 0 : gpu_int32(w, l->num_rejected, q->batch_index);
    bool draft = q->flags & HF_REQUEST_DRAFT && !w->context_only;

    if (rejected < 0 || (uint32_t)rejected > q->rows)
        return "num_rejected is negative or more than the request's rows";
    *ret_out = (struct hw_request){
        .request_slot = q->request_slot,
        .generation = q->generation,
        .rows = q->rows - (uint32_t)rejected,
        .flags = draft ? HW_REQUEST_DRAFT : 0,
        .anchor = -1,
    };
    if (!draft)
        return NULL;
    if (gpu_int32(w, l->num_sampled, q->batch_index) > 0)
        ret_out->anchor = gpu_int64(w, l->last_sampled, q->request_slot);
    else
        ret_out->anchor = gpu_int32(w, l->next_prefill, q->request_slot);
    if (ret_out->anchor < 0 || ret_out->anchor >= g->vocab)
        return "the token that drafts should follow is not in the vocabulary";
    return NULL;
}

/* Rows that follow the piece before make it longer: without rejected rows the whole round is one piece. */
static void add_piece(struct hfd_wire *w, const unsigned char *data, size_t bytes)
{
    struct hfd_outgoing *m = &w->message;
    struct hfd_piece *last = m->n_pieces ? &w->pieces[m->n_pieces - 1] : NULL;

    if (bytes == 0)
        return;
    if (last && (const unsigned char *)last->data + last->bytes == data)
        last->bytes += bytes;
    else
        w->pieces[m->n_pieces++] = (struct hfd_piece){.data = data, .bytes = bytes};
    m->rows_bytes += bytes;
}

/* Positions and tokens of the valid rows into the head, the rows themselves as pieces. Returns the end of the head. */
static unsigned char *build_rows(struct hfd_wire *w, const struct hw_request *table, unsigned char *at)
{
    const unsigned char *ring = ring_of(w);
    uint32_t row_bytes = w->region->geometry.row_bytes;
    unsigned char *tokens = at + (size_t)w->valid_rows * sizeof(int64_t);
    struct hf_ring_span span;

    hf_ring_span_of(&w->region->geometry, w->round.n_rows, &span);
    for (uint32_t i = 0; i < w->round.n_requests; i++) {
        size_t first = w->requests[i].first_row, rows = table[i].rows;

        memcpy(at, ring + span.positions + first * sizeof(int64_t), rows * sizeof(int64_t));
        memcpy(tokens, ring + span.tokens + first * sizeof(int32_t), rows * sizeof(int32_t));
        at += rows * sizeof(int64_t);
        tokens += rows * sizeof(int32_t);
        add_piece(w, ring + span.rows + first * row_bytes, rows * row_bytes);
    }
    return tokens;
}

const char *hfd_wire_build(struct hfd_wire *w)
{
    const struct hf_geometry *g = &w->region->geometry;
    struct hw_header header = hfd_wire_control(w->session, HW_ROUND, w->round.round);
    unsigned char *at = w->head + sizeof(header) + sizeof(struct hw_round);
    struct hw_request *table = (struct hw_request *)at; /* 8-byte aligned: the head is malloc'd, both headers are 24 bytes */
    struct hw_round round;
    const char *fault;

    w->valid_rows = 0;
    w->message = (struct hfd_outgoing){.head = w->head, .pieces = w->pieces, .two_parts = true};
    for (uint32_t i = 0; i < w->round.n_requests; i++) {
        fault = build_request(w, &w->requests[i], &table[i]);
        if (fault)
            return fault;
        w->valid_rows += table[i].rows;
    }
    at = build_rows(w, table, (unsigned char *)(table + w->round.n_requests));
    round = (struct hw_round){
        .n_requests = w->round.n_requests,
        .n_rows = w->valid_rows,
        .row_bytes = g->row_bytes,
        .drafts = g->drafts,
        .flags = w->context_only ? HW_ROUND_CONTEXT_ONLY : 0,
    };
    w->message.head_bytes = (size_t)(at - w->head);
    if (w->message.head_bytes > HW_MAX_PART_BYTES || w->message.rows_bytes > HW_MAX_PART_BYTES)
        return "a round is larger than a worker takes: HW_MAX_PART_BYTES";
    header.body_bytes = (uint32_t)(w->message.head_bytes - sizeof(header));
    memcpy(w->head, &header, sizeof(header));
    memcpy(w->head + sizeof(header), &round, sizeof(round));
    return NULL;
}

bool hfd_wire_header(const void *data, size_t bytes, struct hw_header *ret_header)
{
    if (bytes < sizeof(*ret_header))
        return false;
    memcpy(ret_header, data, sizeof(*ret_header)); /* not aligned */
    return ret_header->magic == HW_MAGIC && ret_header->version == HW_VERSION &&
           ret_header->body_bytes == bytes - sizeof(*ret_header);
}

bool hfd_wire_foreign_header(const void *data, size_t bytes, struct hw_header *ret_header)
{
    if (bytes < sizeof(*ret_header))
        return false;
    memcpy(ret_header, data, sizeof(*ret_header));
    return ret_header->magic == HW_MAGIC && ret_header->version != HW_VERSION;
}

struct hw_header hfd_wire_control(uint64_t session, enum hw_type type, uint32_t number)
{
    return (struct hw_header){
        .magic = HW_MAGIC, .version = HW_VERSION, .type = (uint16_t)type, .session = session, .round = number};
}

enum hfd_reply hfd_wire_check_reply(const struct hfd_wire *w, const void *body, size_t bytes)
{
    const struct hf_geometry *g = &w->region->geometry;
    const unsigned char *ids = (const unsigned char *)body + sizeof(struct hw_reply);
    size_t n_ids = (size_t)w->round.n_requests * g->drafts;
    struct hw_reply reply;

    if (bytes < sizeof(reply))
        return HFD_REPLY_BAD;
    memcpy(&reply, body, sizeof(reply));
    if (reply.status >= HW_STATUS_MAX)
        return HFD_REPLY_BAD;
    if (reply.status != HW_STATUS_OK) {
        if (reply.n_requests != 0 || reply.drafts != 0 || reply.extra_bytes != 0 || bytes != sizeof(reply))
            return HFD_REPLY_BAD;
        return reply.status == HW_STATUS_UNKNOWN_SESSION ? HFD_REPLY_UNKNOWN_SESSION : HFD_REPLY_REFUSED;
    }
    if (reply.n_requests != w->round.n_requests || reply.drafts != g->drafts || reply.extra_bytes != g->extra_bytes)
        return HFD_REPLY_BAD;
    if (bytes != sizeof(reply) + n_ids * sizeof(int64_t) + (size_t)reply.n_requests * g->extra_bytes)
        return HFD_REPLY_BAD;
    for (size_t i = 0; i < n_ids; i++) {
        int64_t id;

        memcpy(&id, ids + i * sizeof(id), sizeof(id));
        if (id < 0 || id >= g->vocab)
            return HFD_REPLY_BAD;
    }
    return HFD_REPLY_OK;
}

void hfd_wire_store_reply(const struct hfd_wire *w, const void *body)
{
    const struct hf_geometry *g = &w->region->geometry;
    const unsigned char *from = (const unsigned char *)body + sizeof(struct hw_reply);
    unsigned char *area = hf_reply_of(w->region, w->round.round);
    _Atomic int64_t *ids = (_Atomic int64_t *)(area + w->region->layout.reply_ids);
    size_t n_ids = (size_t)w->round.n_requests * g->drafts;

    /* Single aligned stores: where the watchdog released the stream meanwhile, its copy may run right now, and must find
       a legal id in every place, be it an old one. Relaxed: the verdict orders them ("reply, verdict"). */
    for (size_t i = 0; i < n_ids; i++) {
        int64_t id;

        memcpy(&id, from + i * sizeof(id), sizeof(id));
        atomic_store_explicit(&ids[i], id, memory_order_relaxed);
    }
    if (g->extra_bytes)
        memcpy(area + w->region->layout.reply_extra, from + n_ids * sizeof(int64_t),
               (size_t)w->round.n_requests * g->extra_bytes);
}

void hfd_wire_store_timing(const struct hfd_wire *w, const struct hf_timing *timing)
{
    struct hf_timing *area = (struct hf_timing *)hf_reply_of(w->region, w->round.round);

    /* Relaxed stores, word by word: the engine reads these even where the watchdog decided ("reply, verdict" else). */
    atomic_store_explicit((_Atomic uint32_t *)&area->round, timing->round, memory_order_relaxed);
    atomic_store_explicit((_Atomic uint64_t *)&area->seen_ns, timing->seen_ns, memory_order_relaxed);
    atomic_store_explicit((_Atomic uint64_t *)&area->send_ns, timing->send_ns, memory_order_relaxed);
    atomic_store_explicit((_Atomic uint64_t *)&area->sent_ns, timing->sent_ns, memory_order_relaxed);
    atomic_store_explicit((_Atomic uint64_t *)&area->replied_ns, timing->replied_ns, memory_order_relaxed);
    atomic_store_explicit((_Atomic uint64_t *)&area->decided_ns, timing->decided_ns, memory_order_relaxed);
}
