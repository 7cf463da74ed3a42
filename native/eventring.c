/* SPDX-License-Identifier: Apache-2.0 */
#include "eventring.h"

#include <stdlib.h>
#include <string.h>

uint32_t hfd_events_room(const struct hfd_event_ring *ring)
{
    /* Acquire: the taker is done with the slots it has taken ("event, taken"). */
    return HFD_EVENTS - (atomic_load_explicit(&ring->put, memory_order_relaxed) -
                         atomic_load_explicit(&ring->taken, memory_order_acquire));
}

bool hfd_events_put(struct hfd_event_ring *ring, const struct hfd_event *event)
{
    uint32_t put = atomic_load_explicit(&ring->put, memory_order_relaxed);
    struct hfd_event copy = *event;
    void *body = NULL;

    if (hfd_events_room(ring) == 0)
        return false;
    if (copy.body_bytes) {
        body = malloc(copy.body_bytes);
        if (!body)
            return false;
        memcpy(body, event->body, copy.body_bytes);
    }
    copy.body = body;
    ring->slot[put % HFD_EVENTS] = copy;
    /* Release: the slot is written before it counts ("event, put"). */
    atomic_store_explicit(&ring->put, put + 1, memory_order_release);
    return true;
}

bool hfd_events_take(struct hfd_event_ring *ring, struct hfd_event *ret_event)
{
    uint32_t taken = atomic_load_explicit(&ring->taken, memory_order_relaxed);

    free(ring->body);
    ring->body = NULL;
    /* Acquire: the slot is written ("event, put"). */
    if (atomic_load_explicit(&ring->put, memory_order_acquire) == taken)
        return false;
    *ret_event = ring->slot[taken % HFD_EVENTS];
    ring->body = (void *)ret_event->body;
    /* Release: the slot is read before it is free ("event, taken"). */
    atomic_store_explicit(&ring->taken, taken + 1, memory_order_release);
    return true;
}

void hfd_events_clear(struct hfd_event_ring *ring)
{
    struct hfd_event event;

    while (hfd_events_take(ring, &event))
        ;
}
