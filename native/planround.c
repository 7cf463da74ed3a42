/* SPDX-License-Identifier: Apache-2.0 */
#include "planround.h"

uint64_t hfe_plan_bytes(const struct hfe_plan *p, uint32_t rows)
{
    struct hf_ring_span span;

    hf_ring_span_of(p->geometry, rows, &span);
    return rows == 0 ? 0 : span.bytes;
}

uint32_t hfe_plan_rows_in(const struct hfe_plan *p, uint64_t bytes)
{
    uint32_t rows = (uint32_t)(bytes / (p->geometry->row_bytes + sizeof(int64_t) + sizeof(int32_t)));

    while (rows > 0 && hfe_plan_bytes(p, rows) > bytes) /* a step or two: the arrays are padded to lines */
        rows--;
    return rows;
}

uint32_t hfe_plan_prefill_room(const struct hfe_plan *p, uint64_t after)
{
    /* Those that wait for the backlog need no room for decode rows: reserving it would keep the backlog full for ever. */
    uint64_t step = hfe_plan_bytes(p, (p->geometry->max_requests - p->held) * (p->geometry->drafts + 1));
    uint64_t next = step < p->ring->bytes / 2 ? step : p->ring->bytes / 2;
    uint32_t rows = hfe_plan_rows_in(p, hfe_ring_room(p->ring, after + next));

    /* A ring that is hardly larger than a step must not keep prefill out for ever. */
    if (rows == 0 && p->ring->in_use == 0)
        rows = hfe_plan_rows_in(p, hfe_ring_room(p->ring, after));
    return rows;
}

void hfe_plan_begin(struct hfe_plan *p, uint32_t flags, uint32_t main)
{
    p->round[p->n_rounds] = (struct hfe_planned){
        .flags = flags, .main = main, .first_request = p->n_requests, .first_piece = p->n_pieces};
}

void hfe_plan_end(struct hfe_plan *p)
{
    struct hfe_planned *round = &p->round[p->n_rounds];

    round->ring_bytes = hfe_plan_bytes(p, round->n_rows);
    round->ring_offset = (uint64_t)hfe_ring_take(p->ring, round->ring_bytes); /* planned to fit */
    p->shipped += round->n_rows;
    p->n_rounds++;
}

bool hfe_plan_end_context(struct hfe_plan *p)
{
    if (p->round[p->n_rounds].n_rows == 0)
        return false;
    hfe_plan_end(p);
    p->budget--;
    return true;
}

void hfe_plan_add_rows(struct hfe_plan *p, uint32_t from, uint32_t rows, uint32_t backlog)
{
    struct hfe_planned *round = &p->round[p->n_rounds];
    struct hfe_piece *last = round->n_pieces ? &p->piece[p->n_pieces - 1] : NULL;

    if (rows == 0)
        return;
    round->n_rows += rows;
    if (last && last->backlog == backlog && last->from + last->rows == from) {
        last->rows += rows; /* side by side in the source, so one copy */
        return;
    }
    p->piece[p->n_pieces++] = (struct hfe_piece){.from = from, .rows = rows, .backlog = backlog};
    round->n_pieces++;
}

struct hf_request *hfe_plan_add_request(struct hfe_plan *p, uint32_t request_slot, uint32_t generation, uint32_t flags)
{
    struct hfe_planned *round = &p->round[p->n_rounds];
    struct hf_request *request = &p->request[p->n_requests++];

    *request = (struct hf_request){
        .request_slot = request_slot, .generation = generation, .first_row = round->n_rows, .flags = flags};
    round->n_requests++;
    return request;
}

struct hf_request *hfe_plan_entry_for(struct hfe_plan *p, uint32_t request_slot, uint32_t generation)
{
    struct hfe_planned *round = &p->round[p->n_rounds];
    struct hf_request *table = &p->request[round->first_request];

    if (p->n_pieces + p->geometry->max_requests >= p->max_pieces) /* the main round needs as many */
        return NULL;
    for (uint32_t i = 0; i < round->n_requests; i++)
        if (table[i].request_slot == request_slot && table[i].generation == generation)
            return i + 1 == round->n_requests ? &table[i] : NULL;
    if (round->n_requests == p->geometry->max_requests)
        return NULL;
    return hfe_plan_add_request(p, request_slot, generation, HF_REQUEST_ALL_VALID);
}
