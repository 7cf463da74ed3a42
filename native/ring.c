/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <errno.h>

/* The two places where a piece can go: behind the newest one, and, where that lies behind the oldest, at the start. */
struct room {
    uint64_t behind, start;
};

static struct room room_of(const struct hfe_ring *ring)
{
    if (ring->in_use == 0)
        return (struct room){.behind = ring->bytes, .start = 0};
    if (ring->head > ring->tail)
        return (struct room){.behind = ring->bytes - ring->head, .start = ring->tail};
    /* Also where head and tail meet: with a piece in use that means full, not empty. */
    return (struct room){.behind = ring->tail - ring->head, .start = 0};
}

void hfe_ring_init(struct hfe_ring *ring, uint64_t bytes, uint32_t slots, uint32_t base)
{
    *ring = (struct hfe_ring){.bytes = bytes, .slots = slots, .oldest = base + 1, .next = base + 1};
}

void hfe_ring_free(struct hfe_ring *ring, uint32_t retired)
{
    while (ring->oldest != ring->next && hf_past(retired, ring->oldest) >= 0) {
        uint32_t slot = ring->oldest & (ring->slots - 1);

        if (ring->piece[slot].bytes > 0)
            ring->in_use--;
        ring->oldest++;
    }
    if (ring->in_use == 0) {
        ring->head = 0;
        return;
    }
    /* The next piece with bytes is the oldest in use: those without are nowhere. */
    for (uint32_t t = ring->oldest; t != ring->next; t++) {
        uint32_t slot = t & (ring->slots - 1);

        if (ring->piece[slot].bytes > 0) {
            ring->tail = ring->piece[slot].offset;
            break;
        }
    }
}

uint64_t hfe_ring_room(const struct hfe_ring *ring, uint64_t reserve)
{
    struct room room = room_of(ring);
    uint64_t behind = 0, start = 0;

    /* A piece goes behind the newest wherever it fits there, else to the start. What is left behind is lost to the next
       one if this one goes to the start. */
    if (reserve <= room.start)
        behind = room.behind;
    else if (reserve <= room.behind)
        behind = room.behind - reserve;
    if (reserve <= room.start)
        start = room.start - reserve;
    return behind > start ? behind : start;
}

bool hfe_ring_fits(const struct hfe_ring *ring, uint64_t bytes)
{
    struct room room = room_of(ring);

    return bytes <= room.behind || bytes <= room.start;
}

int64_t hfe_ring_take(struct hfe_ring *ring, uint64_t bytes)
{
    struct room room = room_of(ring);
    uint32_t slot = ring->next & (ring->slots - 1);
    uint64_t at = 0;

    if (bytes > 0) {
        if (bytes <= room.behind)
            at = ring->head;
        else if (bytes > room.start)
            return -ENOSPC;
        if (ring->in_use++ == 0)
            ring->tail = at;
        ring->head = at + bytes;
    }
    ring->piece[slot].offset = at;
    ring->piece[slot].bytes = bytes;
    ring->next++;
    return (int64_t)at;
}
