/* SPDX-License-Identifier: Apache-2.0 */
#include "backlog.h"

#include <errno.h>
#include <stdlib.h>

#define DROPPED UINT32_MAX /* as the request slot of an entry that nobody wants any more */

uint64_t hfe_backlog_bytes(const struct hf_geometry *g, uint32_t capacity, struct hf_ring_span *ret_span)
{
    hf_ring_span_of(g, capacity, ret_span);
    return ret_span->bytes;
}

int hfe_backlog_init(struct hfe_backlog *b, const struct hf_geometry *g, uint32_t capacity, void *memory)
{
    struct hf_ring_span span;
    unsigned char *base = memory;

    hfe_backlog_bytes(g, capacity, &span);
    *b = (struct hfe_backlog){.capacity = capacity};
    b->entry = calloc((size_t)capacity + 1, sizeof(*b->entry));
    b->waiting = calloc(g->state_slots, sizeof(*b->waiting));
    if (!b->entry || !b->waiting) {
        hfe_backlog_done(b);
        return -ENOMEM;
    }
    if (base) {
        b->positions = base + span.positions;
        b->tokens = base + span.tokens;
        b->rows = base + span.rows;
    }
    return 0;
}

void hfe_backlog_done(struct hfe_backlog *b)
{
    free(b->entry);
    free(b->waiting);
    b->entry = NULL;
    b->waiting = NULL;
}

/* Dropped entries stay where they are until they come to the front: places are given up in order. */
static void drop_entries(struct hfe_backlog *b, uint32_t request_slot)
{
    for (uint32_t i = 0; i < b->entries; i++) {
        struct hfe_entry *e = &b->entry[(b->first + i) % b->capacity];

        if (e->request_slot == request_slot)
            e->request_slot = DROPPED;
    }
}

uint32_t hfe_backlog_meet(struct hfe_backlog *b, uint32_t request_slot, uint32_t generation)
{
    struct hfe_waiting *w = &b->waiting[request_slot];
    uint32_t dropped = w->rows;

    if (w->generation == generation)
        return 0;
    if (dropped > 0)
        drop_entries(b, request_slot);
    b->waiting_rows -= dropped;
    *w = (struct hfe_waiting){.generation = generation};
    return dropped;
}

uint32_t hfe_backlog_put(struct hfe_backlog *b, uint32_t request_slot, uint32_t generation, uint32_t rows, uint32_t *ret_start)
{
    uint32_t room = b->capacity - b->used;
    uint32_t last;

    if (rows > room)
        rows = room;
    if (rows > b->capacity - b->head)
        rows = b->capacity - b->head;
    if (rows == 0)
        return 0;
    last = (b->first + b->entries++) % b->capacity; /* an entry has a row at least: they fit */
    b->entry[last] = (struct hfe_entry){
        .request_slot = request_slot, .generation = generation, .start = b->head, .rows = rows};
    *ret_start = b->head;
    b->head = (b->head + rows) % b->capacity;
    b->used += rows;
    b->waiting[request_slot].rows += rows;
    b->waiting_rows += rows;
    return rows;
}

static void pop(struct hfe_backlog *b)
{
    b->used -= b->entry[b->first].rows;
    b->first = (b->first + 1) % b->capacity;
    b->entries--;
    if (b->entries == 0)
        b->head = 0; /* start again there, so that what comes next lies together */
}

const struct hfe_entry *hfe_backlog_front(struct hfe_backlog *b)
{
    while (b->entries > 0) {
        const struct hfe_entry *e = &b->entry[b->first];

        if (e->request_slot != DROPPED)
            return e;
        pop(b);
    }
    return NULL;
}

void hfe_backlog_take(struct hfe_backlog *b, uint32_t rows)
{
    struct hfe_entry *e = &b->entry[b->first];

    b->waiting[e->request_slot].rows -= rows;
    b->waiting_rows -= rows;
    b->used -= rows;
    e->start += rows;
    e->rows -= rows;
    if (e->rows == 0)
        pop(b);
}
