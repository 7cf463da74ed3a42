/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row ring's allocation. CPU bookkeeping of the engine thread alone: which bytes of the rows part belong to which
 * round. A round's piece is contiguous; pieces are freed in the order of their rounds, as these retire; an empty ring
 * starts again at 0. A round without rows has a piece of 0 bytes, which is nowhere.
 */
#ifndef RING_H
#define RING_H

#include "hostflag.h"

struct hfe_ring {
    uint64_t bytes;
    uint64_t head;    /* where the newest piece ends */
    uint64_t tail;    /* where the oldest piece in use starts; meaningless while in_use is 0 */
    uint32_t in_use;  /* pieces with bytes that are not freed */
    uint32_t oldest;  /* the oldest round that is not freed */
    uint32_t next;    /* the round that the next piece is for */
    uint32_t slots;
    struct {
        uint64_t offset, bytes;
    } piece[HF_MAX_SLOTS];
};

/* base: the last round that is over; the next piece is for base + 1. */
void hfe_ring_init(struct hfe_ring *ring, uint64_t bytes, uint32_t slots, uint32_t base);
/* Frees the pieces of every round up to and including retired. */
void hfe_ring_free(struct hfe_ring *ring, uint32_t retired);
/* The largest piece that can be taken now such that one of reserve bytes can be taken after it; 0: none. */
uint64_t hfe_ring_room(const struct hfe_ring *ring, uint64_t reserve);
/* Whether a piece of so many bytes can be taken now. */
bool hfe_ring_fits(const struct hfe_ring *ring, uint64_t bytes);
/* Takes the piece of round `next`. Returns its offset, or -ENOSPC. The caller has made sure that the round's slot is free. */
int64_t hfe_ring_take(struct hfe_ring *ring, uint64_t bytes);

#endif
