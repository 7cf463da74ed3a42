/* SPDX-License-Identifier: Apache-2.0 */
#include "watchdog.h"

#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REALTIME_PRIORITY 10 /* above ordinary threads, below what the kernel and audio run at */

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

/* ---- when it is over ---- */

static bool ending(const struct hfe_session *e)
{
    return hfe_lost(e) != HF_LOSS_NONE || atomic_load_explicit(&e->closing, memory_order_seq_cst);
}

/* Nothing of the session can move any more: given up or closing, then no submit under way, then all of it consumed. In this
   order: a submit that began before the loss may still add a round, and one that begins after it sees the loss. */
static bool finished(const struct hfe_session *e)
{
    if (!ending(e))
        return false;
    /* seq_cst: "bracket, lost", mirror of hfe_submit. Acquire: attempted, as that submit left it. */
    if (atomic_load_explicit(&e->bracket, memory_order_seq_cst))
        return false;
    /* A round that a failed submit left half enqueued is consumed only if the stream could be told to say so. */
    if (atomic_load_explicit(&e->region.engine->consumed.value, memory_order_acquire) !=
        atomic_load_explicit(&e->attempted, memory_order_relaxed))
        return false;
    /* Context-only rounds are consumed before they are decided. Lost: the last look below decides them. */
    return hfe_lost(e) != HF_LOSS_NONE || !hfe_in_flight(e);
}

/* ---- the thread ---- */

/* Whether the daemon said beforehand that it would go. */
static bool was_planned(const struct hfe_session *e)
{
    uint32_t phase = hf_word_load(&e->region, HF_WORD_PHASE);

    return phase == HF_PHASE_DRAINING || phase == HF_PHASE_GONE;
}

/* Sleeps until the tick, the bell or the daemon's end of the socket. */
static void sleep_once(struct hfe_session *e, bool ticking)
{
    struct hfe_watchdog *w = &e->watchdog;
    struct pollfd fds[2] = {{.fd = w->bell, .events = POLLIN}, {.fd = w->socket, .events = 0}};
    struct timespec tick = timespec_of(e->config.tick_ns);
    uint64_t rings;

    if (ppoll(fds, 2, ticking ? &tick : NULL, NULL) <= 0)
        return; /* the tick; EINTR cannot be, all signals are blocked */
    if ((fds[0].revents & POLLIN) && read(w->bell, &rings, sizeof(rings)) < 0)
        return; /* somebody else's read, never: nothing to do but look */
    if (fds[1].revents == 0)
        return;
    /* Only POLLHUP says that the daemon is gone: a 0-byte read is an empty packet too, and a failed write is no proof. */
    if (fds[1].revents & POLLHUP)
        hfe_give_up(e, was_planned(e) ? HF_LOSS_DRAINED : HF_LOSS_HANGUP);
    w->socket = -1; /* it would end every further poll at once */
}

static void *watch(void *argument)
{
    struct hfe_session *e = argument;
    struct hfe_watchdog *w = &e->watchdog;

    for (;;) {
        bool resting;

        hfe_watchdog_look(e);
        if (finished(e))
            break;
        atomic_store_explicit(&w->at_rest, 1, memory_order_relaxed);
        /* "attempted, at rest": mirror of hfe_watchdog_wake. Either we see the round, or the submit sees us at rest. */
        atomic_thread_fence(memory_order_seq_cst);
        resting = !hfe_in_flight(e) && !ending(e);
        if (!resting)
            atomic_store_explicit(&w->at_rest, 0, memory_order_relaxed);
        sleep_once(e, !resting);
        atomic_store_explicit(&w->at_rest, 0, memory_order_relaxed);
        if (resting)
            w->last_ns = 0;
    }
    hfe_watchdog_look(e); /* context-only rounds that were gathered between the last look and the last of them being consumed */
    /* Release: pairs with hfe_watchdog_join. Nothing of the session is touched behind this. */
    atomic_store_explicit(&w->ended, 1, memory_order_release);
    syscall(SYS_futex, &w->ended, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    return NULL;
}

void hfe_watchdog_wake(struct hfe_session *e)
{
    struct hfe_watchdog *w = &e->watchdog;
    uint64_t one = 1;
    uint32_t rest;

    /* "attempted, at rest": mirror of watch. */
    atomic_thread_fence(memory_order_seq_cst);
    rest = atomic_load_explicit(&w->at_rest, memory_order_relaxed);
    if (rest == 0)
        return;
    if (rest == 1) {
        /* From now on it must tick. */
        atomic_store_explicit(&w->tick_ns, hf_now_ns(), memory_order_release);
        (void)atomic_compare_exchange_strong_explicit(&w->at_rest, &rest, 2, memory_order_relaxed, memory_order_relaxed);
    }
    /* Also where somebody else is about to ring: he may be held up just before, and a round would have no deadline. */
    if (write(w->bell, &one, sizeof(one)) < 0)
        return; /* EAGAIN: it has been rung 2^64 - 1 times already */
}

bool hfe_watchdog_ready(const struct hfe_session *e, uint64_t now_ns)
{
    const struct hfe_watchdog *w = &e->watchdog;
    uint64_t tick = atomic_load_explicit(&w->tick_ns, memory_order_acquire);

    return atomic_load_explicit(&w->at_rest, memory_order_relaxed) == 1 || now_ns < tick + e->config.starved_ns;
}

/* Real time where it is permitted: the deadline must hold while the engine's other threads keep every core busy. */
static int start_thread(struct hfe_session *e)
{
    struct sched_param priority = {.sched_priority = REALTIME_PRIORITY};
    struct hfe_watchdog *w = &e->watchdog;
    sigset_t all, before;
    int r;

    /* Inherited by the thread: a handler of the engine's never runs there. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = -pthread_create(&w->thread, NULL, watch, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r < 0)
        return r;
    pthread_setname_np(w->thread, "hf-watchdog");
    w->realtime = e->config.realtime && pthread_setschedparam(w->thread, SCHED_FIFO | SCHED_RESET_ON_FORK, &priority) == 0;
    return 0;
}

/* A duplicate, so that it stays what it is whatever the caller does with his. */
static int duplicate(int fd, int *ret_fd)
{
    if (fd < 0)
        return 0;
    *ret_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    return *ret_fd < 0 ? -errno : 0;
}

static void close_all(struct hfe_watchdog *w)
{
    if (w->loss >= 0)
        close(w->loss);
    if (w->hangup >= 0)
        close(w->hangup);
    if (w->bell >= 0)
        close(w->bell);
    w->loss = w->hangup = w->bell = -1;
}

int hfe_watchdog_start(struct hfe_session *e)
{
    struct hfe_watchdog *w = &e->watchdog;
    int r;

    w->loss = w->hangup = -1;
    w->released = atomic_load_explicit(&e->base, memory_order_relaxed);
    w->beat = atomic_load_explicit(&e->region.daemon->beat.value, memory_order_relaxed);
    w->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->bell < 0)
        return -errno;
    r = duplicate(e->config.socket, &w->hangup);
    if (r < 0)
        goto fail;
    r = duplicate(e->config.loss_fd, &w->loss);
    if (r < 0)
        goto fail;
    w->socket = w->hangup;
    /* It counts as ticking from now on: without real-time priority the first submit can come before its first tick. */
    atomic_store_explicit(&w->tick_ns, hf_now_ns(), memory_order_relaxed);
    r = start_thread(e);
    if (r < 0)
        goto fail;
    return 0;
fail:
    close_all(w);
    return r;
}

int hfe_watchdog_join(struct hfe_session *e, uint64_t timeout_ns)
{
    struct hfe_watchdog *w = &e->watchdog;
    uint64_t start = hf_now_ns();

    /* Acquire: pairs with the end of watch. */
    while (!atomic_load_explicit(&w->ended, memory_order_acquire)) {
        uint64_t waited = hf_now_ns() - start;
        struct timespec rest;

        if (waited >= timeout_ns)
            return -ETIMEDOUT;
        rest = timespec_of(timeout_ns - waited);
        syscall(SYS_futex, &w->ended, FUTEX_WAIT_PRIVATE, 0, &rest, NULL, 0);
    }
    return 0;
}

void hfe_watchdog_forked(struct hfe_session *e)
{
    close_all(&e->watchdog);
}

void hfe_watchdog_done(struct hfe_session *e)
{
    pthread_join(e->watchdog.thread, NULL);
    close_all(&e->watchdog);
}
