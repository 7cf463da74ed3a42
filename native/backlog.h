/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backlog: prefill rows that found no room in the ring, kept in device memory until a later submit ships them. A ring
 * of rows, first in, first out. This is only the bookkeeping, and the engine thread's alone: copies in and out are the
 * stream's, and its order makes it safe to hand a row's place to the next one before the copy out has run.
 */
#ifndef BACKLOG_H
#define BACKLOG_H

#include "hostflag.h"

/* Rows of one request that lie together. */
struct hfe_entry {
    uint32_t request_slot;
    uint32_t generation;
    uint32_t start; /* row within the backlog */
    uint32_t rows;
};

/* Per request slot: whose rows wait. */
struct hfe_waiting {
    uint32_t generation;
    uint32_t rows;
};

struct hfe_backlog {
    uint32_t capacity; /* rows */
    uint32_t head;     /* next row to fill */
    uint32_t used;     /* rows in use, dropped ones included until they come to the front */
    uint32_t first;    /* oldest entry */
    uint32_t entries;
    uint32_t waiting_rows; /* rows that are to be shipped */
    struct hfe_entry *entry;     /* [capacity] */
    struct hfe_waiting *waiting; /* [state_slots] */
    /* device memory: int64 positions[capacity], int32 tokens[capacity], bytes rows[capacity] */
    unsigned char *positions, *tokens, *rows;
};

/* Bytes of device memory for so many rows, and where its arrays lie. */
uint64_t hfe_backlog_bytes(const struct hf_geometry *g, uint32_t capacity, struct hf_ring_span *ret_span);
/* memory: of hfe_backlog_bytes; stays the caller's. capacity may be 0: nothing ever waits. Returns 0 or -ENOMEM. */
int hfe_backlog_init(struct hfe_backlog *b, const struct hf_geometry *g, uint32_t capacity, void *memory);
void hfe_backlog_done(struct hfe_backlog *b);
/* A request is there, in this generation. Drops what waits for an older one. Returns how many rows that were. */
uint32_t hfe_backlog_meet(struct hfe_backlog *b, uint32_t request_slot, uint32_t generation);
/* Rows of a request that was met and still wait. */
static inline uint32_t hfe_backlog_waiting(const struct hfe_backlog *b, uint32_t request_slot)
{
    return b->waiting[request_slot].rows;
}
/* How many rows can still be put. */
static inline uint32_t hfe_backlog_room(const struct hfe_backlog *b)
{
    return b->capacity - b->used;
}
/* Puts up to rows of a request that was met: what fits and lies together. Returns how many; *ret_start says where.
   Call again for the rest; 0 means that it is full. */
uint32_t hfe_backlog_put(struct hfe_backlog *b, uint32_t request_slot, uint32_t generation, uint32_t rows, uint32_t *ret_start);
/* The oldest entry that is still wanted, or NULL. Dropped ones before it are given up on the way. */
const struct hfe_entry *hfe_backlog_front(struct hfe_backlog *b);
/* Takes rows from the front entry, which has at least so many. */
void hfe_backlog_take(struct hfe_backlog *b, uint32_t rows);

#endif
