/* SPDX-License-Identifier: Apache-2.0 */
/* What the control plane tells a running loop, and what it reads of it. */
#include "loopstate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

static struct hfd_encoded *encoded_copy(const void *data, uint32_t bytes)
{
    struct hfd_encoded *e = malloc(sizeof(*e) + bytes);

    if (!e)
        return NULL;
    e->bytes = bytes;
    memcpy(e->data, data, bytes);
    return e;
}

/* Whether this is one whole message of that type. */
static bool is_control(const void *data, uint32_t bytes, enum hw_type type)
{
    struct hw_header h;

    return hfd_wire_header(data, bytes, &h) && h.type == type && h.body_bytes <= HW_MAX_CONTROL_BYTES;
}

static void wake(struct hfd_loop *l)
{
    /* Acquire: nothing of the loop is touched by accident after its end ("loop, stopped"). */
    if (atomic_load_explicit(&l->stopped, memory_order_acquire))
        return;
    (void)eventfd_write(l->command_fd, 1);
    /* The loop may unmap the region right now: then this wakes nobody, or somebody who looks again and sleeps on. */
    hf_doorbell_nudge(&l->region);
}

int hfd_loop_link(struct hfd_loop *l, struct hfd_transport *transport, uint64_t tag, const void *open, uint32_t open_bytes)
{
    struct hfd_given *given, *none = NULL;

    if (!is_control(open, open_bytes, HW_OPEN))
        return -EINVAL;
    if (hfd_events_room(&l->events) <= HFD_EVENTS_KEPT)
        return -EBUSY; /* its LINK_RETURNED might find no room: take events first */
    given = calloc(1, sizeof(*given));
    if (!given)
        return -ENOMEM;
    *given = (struct hfd_given){.transport = transport, .tag = tag, .open = encoded_copy(open, open_bytes)};
    /* Release: pairs with the loop's taking it ("link, given"). */
    if (given->open && atomic_compare_exchange_strong_explicit(&l->given, &none, given, memory_order_release,
                                                               memory_order_relaxed)) {
        wake(l);
        return 0;
    }
    if (!given->open) {
        free(given);
        return -ENOMEM;
    }
    free(given->open);
    free(given);
    return none == hfd_no_more(l) ? -ESHUTDOWN : -EBUSY;
}

void hfd_loop_drain(struct hfd_loop *l)
{
    atomic_fetch_or_explicit(&l->command, HFD_COMMAND_DRAIN, memory_order_release);
    wake(l);
}

void hfd_loop_resume(struct hfd_loop *l)
{
    atomic_fetch_and_explicit(&l->command, ~(uint32_t)HFD_COMMAND_DRAIN, memory_order_release);
    wake(l);
}

int hfd_loop_stop(struct hfd_loop *l, const void *close, uint32_t close_bytes)
{
    struct hfd_encoded *message = NULL, *none = NULL;

    if (close) {
        if (!is_control(close, close_bytes, HW_CLOSE))
            return -EINVAL;
        message = encoded_copy(close, close_bytes);
        /* Out of memory: it ends all the same, without a CLOSE. A worker forgets who is silent. */
        if (message && !atomic_compare_exchange_strong_explicit(&l->close, &none, message, memory_order_release,
                                                     memory_order_relaxed))
            free(message); /* stopped before: that one counts */
    }
    /* Release: the loop that sees the stop sees the CLOSE ("close, stop"). */
    atomic_fetch_or_explicit(&l->command, HFD_COMMAND_STOP, memory_order_release);
    wake(l);
    return 0;
}

int hfd_loop_event(struct hfd_loop *l, struct hfd_event *ret_event)
{
    return hfd_events_take(&l->events, ret_event);
}

void hfd_loop_status(const struct hfd_loop *l, struct hfd_status *ret_status)
{
    *ret_status = (struct hfd_status){
        .link = atomic_load_explicit(&l->shown_link, memory_order_relaxed),
        .phase = atomic_load_explicit(&l->shown_phase, memory_order_relaxed),
        .done = atomic_load_explicit(&l->shown_done, memory_order_relaxed),
        .stopped = atomic_load_explicit(&l->stopped, memory_order_acquire),
        .breaker = atomic_load_explicit(&l->shown_breaker, memory_order_relaxed),
        .lock_error = l->lock_error,
        .precise_error = atomic_load_explicit(&l->precise_error, memory_order_relaxed),
        .up_ns = atomic_load_explicit(&l->up_ns, memory_order_relaxed),
    };
}

void hfd_loop_counters(const struct hfd_loop *l, struct hfd_counters *ret_counters)
{
    uint64_t words[HFD_COUNTER_WORDS];

    for (size_t i = 0; i < HFD_COUNTER_WORDS; i++)
        words[i] = atomic_load_explicit(&l->counters[i], memory_order_relaxed);
    memcpy(ret_counters, words, sizeof(words));
}

int hfd_loop_histogram(const struct hfd_loop *l, int id, struct hfd_histogram_view *ret_view)
{
    if (id < 0 || id >= HFD_HISTOGRAM_MAX)
        return -EINVAL;
    hfd_histogram_read(&l->histograms[id], ret_view);
    return 0;
}
