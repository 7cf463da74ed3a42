/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop's events on their way to the control plane: one thread puts, one takes, nobody waits. What the control plane
 * must hear always finds room, since what it may miss is dropped while a quarter is left.
 */
#ifndef EVENTRING_H
#define EVENTRING_H

#include "roundloop.h"

#define HFD_EVENTS 64
#define HFD_EVENTS_KEPT 16 /* room that only events that must be heard may take */

struct hfd_event_ring {
    _Atomic uint32_t put, taken; /* counts; cyclic */
    struct hfd_event slot[HFD_EVENTS];
    void *body; /* of the event taken last */
};

/* How many more events fit. */
uint32_t hfd_events_room(const struct hfd_event_ring *ring);
/* Puts an event; its body is copied. False: no room (or no memory for the body), nothing was put. */
bool hfd_events_put(struct hfd_event_ring *ring, const struct hfd_event *event);
bool hfd_events_take(struct hfd_event_ring *ring, struct hfd_event *ret_event);
void hfd_events_clear(struct hfd_event_ring *ring);

#endif
