/* SPDX-License-Identifier: Apache-2.0 */
#include "planround.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Rows for the next context-only round. A quarter of the ring at most, so that the first quarter is sent and freed while
   the last one is gathered. */
static uint32_t context_room(const struct hfe_plan *p, uint64_t main_bytes)
{
    uint32_t quarter = hfe_plan_rows_in(p, p->ring->bytes / 4);

    if (p->budget == 0)
        return 0;
    return smaller(hfe_plan_prefill_room(p, main_bytes), quarter > 0 ? quarter : 1);
}

static bool backlog_round(struct hfe_plan *p, uint64_t main_bytes)
{
    uint32_t room = context_room(p, main_bytes);
    const struct hfe_entry *e;

    if (room == 0 || !hfe_backlog_front(p->backlog))
        return false;
    hfe_plan_begin(p, HF_ROUND_CONTEXT_ONLY, 0);
    while (room > 0 && (e = hfe_backlog_front(p->backlog))) {
        uint32_t rows = smaller(e->rows, room);
        struct hf_request *request = hfe_plan_entry_for(p, e->request_slot, e->generation);

        if (!request)
            break;
        hfe_plan_add_rows(p, e->start, rows, 1);
        request->rows += rows;
        hfe_backlog_take(p->backlog, rows);
        room -= rows;
    }
    return hfe_plan_end_context(p);
}

/* A request of the batch whose prompt rows can go now: none of its older ones wait. */
static bool can_go(const struct hfe_plan *p, const struct hfe_batch *b, uint32_t i)
{
    return p->share[i].prefill && p->share[i].rows > 0 && hfe_backlog_waiting(p->backlog, b->requests[i].request_slot) == 0;
}

static bool prefill_round(struct hfe_plan *p, const struct hfe_batch *b, uint64_t main_bytes)
{
    uint32_t room = context_room(p, main_bytes);

    if (room == 0)
        return false;
    hfe_plan_begin(p, HF_ROUND_CONTEXT_ONLY, 0);
    for (uint32_t i = 0; i < b->n_requests && room > 0; i++) {
        struct hfe_share *share = &p->share[i];
        uint32_t rows = smaller(share->rows, room);
        struct hf_request *request;

        if (!can_go(p, b, i))
            continue;
        request = hfe_plan_entry_for(p, b->requests[i].request_slot, b->requests[i].generation);
        if (!request)
            break;
        hfe_plan_add_rows(p, share->first, rows, 0);
        request->rows += rows;
        share->first += rows;
        share->rows -= rows;
        room -= rows;
    }
    return hfe_plan_end_context(p);
}

/* Puts into the main round what fits of the prompts, whole requests in batch order. Returns the prompt rows that are left. */
static uint32_t share_main(struct hfe_plan *p, const struct hfe_batch *b, uint32_t decode_rows)
{
    uint32_t room = hfe_plan_prefill_room(p, 0), left = 0;

    room = room > decode_rows ? room - decode_rows : 0;
    for (uint32_t i = 0; i < b->n_requests; i++) {
        struct hfe_share *share = &p->share[i];

        if (!can_go(p, b, i))
            continue;
        share->main = share->rows <= room;
        if (share->main)
            room -= share->rows;
        else
            left += share->rows;
    }
    return left;
}

/* To the backlog; what does not even fit there is lost to the drafter. */
static void defer(struct hfe_plan *p, const struct hfe_request *request, struct hfe_share *share)
{
    uint32_t start, rows;

    while (share->rows > 0) {
        rows = hfe_backlog_put(p->backlog, request->request_slot, request->generation, share->rows, &start);
        if (rows == 0)
            break;
        p->deferral[p->n_deferrals++] = (struct hfe_deferral){.from = share->first, .rows = rows, .start = start};
        share->first += rows;
        share->rows -= rows;
        p->deferred += rows;
    }
    p->left_out += share->rows;
    share->rows = 0;
}

/* Everything that is not in a round by now, nor marked for the main one. */
static void leave(struct hfe_plan *p, const struct hfe_batch *b)
{
    for (uint32_t i = 0; i < b->n_requests; i++) {
        struct hfe_share *share = &p->share[i];

        if (share->main)
            continue;
        if (share->prefill) {
            defer(p, &b->requests[i], share);
        } else {
            p->left_out += share->rows;
            share->rows = 0;
        }
    }
}

/* What of each request matters, and what is asked for at all. */
static void look(struct hfe_plan *p, const struct hfe_batch *b)
{
    uint32_t window = p->geometry->window;

    p->n_rounds = p->n_requests = p->n_pieces = p->n_deferrals = 0;
    p->shipped = p->deferred = p->left_out = p->drafting = p->held = 0;
    p->skip = HF_SKIP_NONE;
    for (uint32_t i = 0; i < b->n_requests; i++) {
        const struct hfe_request *request = &b->requests[i];
        struct hfe_share *share = &p->share[i];
        uint32_t rows = request->rows;

        *share = (struct hfe_share){.prefill = (request->flags & HFE_PREFILL) != 0};
        if (share->prefill)
            rows = request->to_come >= window ? 0 : smaller(rows, window - request->to_come);
        share->first = request->first_row + request->rows - rows;
        share->rows = rows;
        p->left_out += hfe_backlog_meet(p->backlog, request->request_slot, request->generation);
        share->held = hfe_backlog_waiting(p->backlog, request->request_slot) > 0;
        p->held += share->held;
    }
}

/* A round with nobody in it: what it takes is what the hand-off takes. */
static bool is_empty(const struct hfe_batch *b)
{
    return b->empty && b->n_requests == 0;
}

/* Something to ship, or somebody who wants drafts. */
static bool wanted(const struct hfe_plan *p, const struct hfe_batch *b)
{
    if (is_empty(b))
        return true;
    for (uint32_t i = 0; i < b->n_requests; i++)
        if (p->share[i].rows > 0 || (b->drafts_out && (b->requests[i].flags & HFE_DRAFT)))
            return true;
    return hfe_backlog_front(p->backlog) != NULL;
}

/* Rows of decodes whose prompt is all out: the ones that are sure of their place. */
static uint32_t decode_rows_of(const struct hfe_plan *p, const struct hfe_batch *b)
{
    uint32_t rows = 0;

    for (uint32_t i = 0; i < b->n_requests; i++)
        if (!p->share[i].prefill && !p->share[i].held)
            rows += p->share[i].rows;
    return rows;
}

/* Which decodes go in the main round: those that are sure of it, and of the others those whose prompt went out just now, as
   far as there is room beside what is in it already. */
static void admit_decodes(struct hfe_plan *p, const struct hfe_batch *b, uint32_t decode_rows)
{
    uint32_t rows = decode_rows;

    for (uint32_t i = 0; i < b->n_requests; i++)
        rows += p->share[i].main ? p->share[i].rows : 0;
    for (uint32_t i = 0; i < b->n_requests; i++) {
        struct hfe_share *share = &p->share[i];
        bool waits = hfe_backlog_waiting(p->backlog, b->requests[i].request_slot) > 0;

        if (share->prefill)
            continue;
        share->main = !share->held || (!waits && hfe_ring_fits(p->ring, hfe_plan_bytes(p, rows + share->rows)));
        if (share->held && share->main)
            rows += share->rows;
    }
}

/* The batch's own round: every request, in batch order. Drafts are asked for by those whose rows are all out. */
static void main_round(struct hfe_plan *p, const struct hfe_batch *b)
{
    bool held_back = false;

    hfe_plan_begin(p, 0, 1);
    for (uint32_t i = 0; i < b->n_requests; i++) {
        const struct hfe_request *asked = &b->requests[i];
        const struct hfe_share *share = &p->share[i];
        uint32_t rows = share->main ? share->rows : 0;
        bool drafts = b->drafts_out && (asked->flags & HFE_DRAFT);
        bool ready = hfe_backlog_waiting(p->backlog, asked->request_slot) == 0;
        struct hf_request *request = hfe_plan_add_request(p, asked->request_slot, asked->generation, 0);

        request->batch_index = i;
        request->rows = rows;
        /* Without rows nothing is rejected, whatever num_rejected says of rows that were left out. */
        request->flags = (drafts && ready ? HF_REQUEST_DRAFT : 0) | (share->prefill || rows == 0 ? HF_REQUEST_ALL_VALID : 0);
        hfe_plan_add_rows(p, share->first, rows, 0);
        p->drafting |= drafts && ready;
        held_back |= drafts && !ready;
    }
    p->drafting |= is_empty(b);
    if (!p->drafting) {
        p->round[p->n_rounds].flags = HF_ROUND_CONTEXT_ONLY;
        p->skip = held_back ? HF_SKIP_RING : HF_SKIP_NONE;
    }
    if (p->drafting || p->round[p->n_rounds].n_rows > 0)
        hfe_plan_end(p);
}

/* Slots for context-only rounds: one stays for the main round and, while there are more than two, one for the next step. */
static uint32_t budget_of(uint32_t free_slots)
{
    uint32_t spare = free_slots > 2 ? free_slots - 2 : free_slots - 1;

    return smaller(spare, HFE_MAX_CONTEXT_ROUNDS);
}

void hfe_plan_make(struct hfe_plan *p, const struct hfe_batch *b, uint32_t free_slots, enum hf_skip skip)
{
    uint32_t decode_rows;
    uint64_t main_bytes;

    look(p, b);
    if (!wanted(p, b)) {
        p->skip = HF_SKIP_NOTHING;
        return;
    }
    decode_rows = decode_rows_of(p, b);
    main_bytes = hfe_plan_bytes(p, decode_rows);
    if (skip == HF_SKIP_NONE && free_slots == 0)
        skip = HF_SKIP_SLOTS;
    if (skip == HF_SKIP_NONE && !hfe_ring_fits(p->ring, main_bytes))
        skip = HF_SKIP_RING;
    if (skip != HF_SKIP_NONE) {
        p->skip = skip;
        leave(p, b);
        return;
    }
    p->budget = budget_of(free_slots);
    while (backlog_round(p, main_bytes))
        continue;
    while (share_main(p, b, decode_rows) > 0 && prefill_round(p, b, main_bytes))
        continue;
    admit_decodes(p, b, decode_rows);
    leave(p, b);
    main_round(p, b);
}

void hfe_plan_refuse(struct hfe_plan *p, const struct hfe_batch *b, enum hf_skip skip)
{
    look(p, b);
    for (uint32_t i = 0; i < b->n_requests; i++)
        p->left_out += p->share[i].rows;
    p->skip = wanted(p, b) ? skip : HF_SKIP_NOTHING;
}
