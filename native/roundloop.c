/* SPDX-License-Identifier: Apache-2.0 */
/* The loop's thread: rest, rounds in order, and what must go on during either; at its end it lets go of everything. */
#include "loopstate.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define COMING_NS UINT64_C(500000000) /* a link that changed so lately is looked at often: it is coming up */
#define COMING_REST_NS UINT64_C(2000000)
#define LOOK_OUT_NS 50000
#define CLOSE_BYTES 128 /* a reason of ours is shorter, and holds nothing that JSON would escape */

void hfd_loop_say(struct hfd_loop *l, const struct hfd_event *event)
{
    bool can_be_missed = event->kind == HFD_EVENT_LINK_UP || event->kind == HFD_EVENT_LINK_DOWN || event->kind == HFD_EVENT_LINK_BARRED ||
                         event->kind == HFD_EVENT_LINK_REFUSED || event->kind == HFD_EVENT_BREAKER_OPEN ||
                         event->kind == HFD_EVENT_BREAKER_PROBE || event->kind == HFD_EVENT_BREAKER_CLOSED;

    if ((can_be_missed && hfd_events_room(&l->events) <= HFD_EVENTS_KEPT) || !hfd_events_put(&l->events, event)) {
        HFD_COUNT(l, events_dropped, 1);
        return;
    }
    if (l->config.event_fd >= 0)
        (void)eventfd_write(l->config.event_fd, 1); /* fails only where it is full, and then it is readable */
}

void hfd_loop_fail(struct hfd_loop *l, const char *fault)
{
    l->end = HFD_END_FAULT;
    l->fault = fault;
}

static void end_by(struct hfd_loop *l, enum hfd_end end)
{
    if (l->end == HFD_END_NOT)
        l->end = end;
}

void hfd_loop_sleep(struct hfd_loop *l, uint64_t timeout_ns, bool with_link)
{
    struct pollfd fds[2 + HFD_TRANSPORT_FDS] = {
        {.fd = l->command_fd, .events = POLLIN},
        {.fd = l->config.socket}, /* nothing is read from it: POLLHUP comes unasked */
    };
    int link_fds[HFD_TRANSPORT_FDS], n_link = 0;
    uint64_t now = hf_now_ns(), beat_due = l->beat_ns + HFD_BEAT_EVERY_NS;
    struct timespec ts;
    eventfd_t posted;

    if (with_link && l->link.transport && !l->link.condemned)
        n_link = l->link.transport->ops->fds(l->link.transport, link_fds);
    for (int i = 0; i < n_link; i++)
        fds[2 + i] = (struct pollfd){.fd = link_fds[i], .events = POLLIN};
    if (timeout_ns > 0 && timeout_ns > (beat_due > now ? beat_due - now : 0))
        timeout_ns = beat_due > now ? beat_due - now : 0;
    if (with_link && l->link.ready)
        timeout_ns = 0;
    ts = (struct timespec){.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_nsec = (long)(timeout_ns % 1000000000)};
    if (ppoll(fds, 2 + (nfds_t)n_link, &ts, NULL) <= 0)
        return;
    if (fds[0].revents)
        (void)eventfd_read(l->command_fd, &posted); /* the command itself is a word: hfd_loop_tend */
    if (fds[1].revents & (POLLHUP | POLLNVAL))
        end_by(l, HFD_END_GONE);
    for (int i = 0; i < n_link; i++)
        l->link.ready |= fds[2 + i].revents != 0;
}

static void show_phase(struct hfd_loop *l, enum hf_phase phase)
{
    if (atomic_load_explicit(&l->shown_phase, memory_order_relaxed) == phase)
        return;
    /* Relaxed: the phase orders nothing; a round that comes anyway is decided by what the loop knows. */
    atomic_store_explicit(&l->region.daemon->phase.value, phase, memory_order_relaxed);
    atomic_store_explicit(&l->shown_phase, phase, memory_order_relaxed);
}

static void beat(struct hfd_loop *l, uint64_t now)
{
    _Atomic uint32_t *word = &l->region.daemon->beat.value;

    /* One writer. Relaxed: a beat says only that the loop runs. */
    atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + 1, memory_order_relaxed);
    l->beat_ns = now;
    HFD_COUNT(l, beats, 1);
    HF_FAILPOINT_BEAT();
}

static void take_commands(struct hfd_loop *l)
{
    /* Acquire: the CLOSE that was posted before a stop is seen ("close, stop"). */
    uint32_t command = atomic_load_explicit(&l->command, memory_order_acquire);

    if (command & HFD_COMMAND_STOP)
        end_by(l, HFD_END_STOP);
    else
        show_phase(l, command & HFD_COMMAND_DRAIN ? HF_PHASE_DRAINING : HF_PHASE_RUNNING);
}

static void take_link(struct hfd_loop *l)
{
    struct hfd_given *given;

    if (!atomic_load_explicit(&l->given, memory_order_relaxed))
        return;
    /* Acquire: what was given, and all that its giver did to the sockets, is seen ("link, given"). */
    given = atomic_exchange_explicit(&l->given, NULL, memory_order_acquire);
    if (given)
        hfd_link_take(l, given);
}

void hfd_loop_tend(struct hfd_loop *l)
{
    uint64_t now = hf_now_ns();

    /* First of all: where the session was lost, nothing is written any more. Relaxed: the word alone counts, and a look
       that comes too early is what the closed socket is for. */
    if (atomic_load_explicit(&l->region.engine->lost.value, memory_order_relaxed) != 0)
        end_by(l, HFD_END_LOST);
    if (l->end == HFD_END_LOST || l->end == HFD_END_GONE)
        return;
    take_commands(l);
    if (!l->flight.waiting) {
        hfd_link_settle(l);
        take_link(l);
    }
    if (now - l->beat_ns >= HFD_BEAT_EVERY_NS) {
        beat(l, now);
        hfd_loop_sleep(l, 0, true);
        hfd_link_check(l);
    }
    if (l->link.ready)
        hfd_link_drain(l);
    hfd_link_tend(l);
}

/* The next round may follow at once: for spin_ns behind a round the loop looks out for it before it sleeps, so that nobody has to
   wake it. In short turns, since nothing is tended meanwhile. False: it has looked long enough. */
static bool look_out(const struct hfd_loop *l, uint32_t submitted, uint64_t now)
{
    uint64_t since = now - l->released_ns, ns;

    if (l->released_ns == 0 || since >= l->config.spin_ns)
        return false;
    ns = l->config.spin_ns - since < LOOK_OUT_NS ? l->config.spin_ns - since : LOOK_OUT_NS;
    do {
        for (int i = 0; i < 16; i++) {
            /* Relaxed: run acquires it. */
            if (atomic_load_explicit(&l->region.engine->submitted.value, memory_order_relaxed) != submitted)
                return true;
            hf_pause();
        }
    } while (hf_now_ns() - now < ns);
    return true;
}

static void rest(struct hfd_loop *l, uint32_t submitted)
{
    uint64_t now = hf_now_ns(), until_beat = l->beat_ns + HFD_BEAT_EVERY_NS;
    bool coming = (l->link.state == HFD_LINK_CONNECTING || l->link.state == HFD_LINK_OPENING) &&
                  now - l->link.changed_ns < COMING_NS;
    uint64_t ns = until_beat > now ? until_beat - now : 0;

    if (l->link.ready || l->link.condemned || look_out(l, submitted, now))
        return;
    HF_FAILPOINT(rest);
    hf_doorbell_wait(&l->region, submitted, coming && ns > COMING_REST_NS ? COMING_REST_NS : ns);
    if (coming)
        hfd_loop_sleep(l, 0, true);
}

static void run(struct hfd_loop *l)
{
    while (l->end == HFD_END_NOT) {
        uint32_t submitted;
        int32_t ahead;

        hfd_loop_tend(l);
        if (l->end != HFD_END_NOT)
            break;
        /* Acquire: pairs with hf_doorbell_ring ("header, submitted"). */
        submitted = atomic_load_explicit(&l->region.engine->submitted.value, memory_order_acquire);
        ahead = hf_past(submitted, l->done);
        if (ahead < 0 || ahead > (int32_t)l->region.geometry.slots)
            hfd_loop_fail(l, "submitted went back, or ran further ahead than there are slots");
        else if (ahead > 0)
            hfd_round_run(l, l->done + 1);
        else
            rest(l, submitted);
    }
}

static void say_end(struct hfd_loop *l)
{
    static const enum hfd_event_kind kinds[] = {
        [HFD_END_LOST] = HFD_EVENT_LOST, [HFD_END_GONE] = HFD_EVENT_ENGINE_GONE, [HFD_END_FAULT] = HFD_EVENT_FAULT};

    if (l->end > HFD_END_STOP)
        hfd_loop_say(l, &(struct hfd_event){.kind = kinds[l->end], .reason = l->fault});
}

/* Where nobody asked for the end: else the worker would keep the contexts of an engine that is gone. NULL: none is due, or out of memory. */
static struct hfd_encoded *closing(const struct hfd_loop *l)
{
    const char *reason = l->end == HFD_END_GONE ? "the engine is gone" : l->end == HFD_END_LOST ? "the engine gave the session up" : l->fault;
    struct hw_header h = hfd_wire_control(l->config.session, HW_CLOSE, 0);
    struct hfd_encoded *message = reason ? malloc(sizeof(*message) + sizeof(h) + CLOSE_BYTES) : NULL;

    if (!message)
        return NULL;
    h.body_bytes = (uint32_t)snprintf((char *)message->data + sizeof(h), CLOSE_BYTES, "{\"reason\":\"%.100s\"}", reason);
    memcpy(message->data, &h, sizeof(h));
    message->bytes = sizeof(h) + h.body_bytes;
    return message;
}

static void let_go(struct hfd_loop *l)
{
    struct hfd_given *given;
    struct hfd_encoded *close_message;
    struct hf_region map = l->region;

    if (l->end == HFD_END_STOP)
        hfd_round_drain(l);
    say_end(l);
    given = atomic_exchange_explicit(&l->given, hfd_no_more(l), memory_order_acq_rel); /* "link, given" */
    close_message = atomic_exchange_explicit(&l->close, NULL, memory_order_acquire);   /* "close, stop" */
    if (!close_message)
        close_message = closing(l);
    hfd_link_end(l, close_message);
    free(close_message);
    if (given) {
        hfd_link_take(l, given);
        hfd_link_end(l, NULL);
    }
    if (l->end == HFD_END_STOP)
        show_phase(l, HF_PHASE_GONE);
    atomic_store_explicit(&l->shown_phase, HF_PHASE_GONE, memory_order_relaxed);
    /* The engine takes the closed socket for proof that nobody writes into the region any more: the map goes first. */
    hf_region_unmap(&map);
    if (l->config.socket >= 0)
        close(l->config.socket);
}

void *hfd_loop_main(void *loop)
{
    struct hfd_loop *l = loop;

    atomic_store_explicit(&l->precise_error, hf_nap_precise(), memory_order_relaxed);
    run(l);
    let_go(l);
    /* Release: whoever sees it stopped sees all of the above ("loop, stopped"). */
    atomic_store_explicit(&l->stopped, 1, memory_order_release);
    hfd_loop_say(l, &(struct hfd_event){.kind = HFD_EVENT_STOPPED});
    (void)eventfd_write(l->ended_fd, 1);
    return NULL;
}
