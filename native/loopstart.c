/* SPDX-License-Identifier: Apache-2.0 */
/* A loop's begin and end as the control plane sees them: region, thread, memory. */
#include "loopstate.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STACK_BYTES (256 << 10)

static const char *config_fault(const struct hfd_config *c)
{
    if (c->network_timeout_ns == 0 || c->network_timeout_ns > UINT64_C(60000000000))
        return "network_timeout_ns must be from 1 ns to 60 s";
    if (c->spin_ns > UINT64_C(10000000))
        return "spin_ns must be at most 10 ms: the loop does nothing else meanwhile";
    if (c->nap_ns == 0 || c->nap_ns > UINT64_C(10000000))
        return "nap_ns must be from 1 ns to 10 ms";
    if (c->open_limit_ns == 0 || (c->ping_ns != 0 && c->ping_limit_ns == 0))
        return "open_limit_ns and ping_limit_ns must not be 0";
    if (c->breaker_failures && (c->breaker_cool_ns == 0 || c->breaker_cool_ns > HFD_BREAKER_MOST_NS))
        return "breaker_cool_ns must be from 1 ns to 4 s";
    return NULL;
}

static void free_loop(struct hfd_loop *l)
{
    if (l->command_fd >= 0)
        close(l->command_fd);
    if (l->ended_fd >= 0)
        close(l->ended_fd);
    hfd_events_clear(&l->events);
    hfd_wire_free(&l->wire);
    free(atomic_load_explicit(&l->close, memory_order_relaxed));
    free(l);
}

static struct hfd_loop *new_loop(const struct hfd_config *c)
{
    struct hfd_loop *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    l->config = *c;
    l->done = c->base;
    atomic_store_explicit(&l->shown_done, c->base, memory_order_relaxed);
    hfd_breaker_init(l);
    hf_nap_init(&l->nap, c->spin_ns, c->nap_ns);
    l->ended_fd = -1;
    l->command_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->command_fd >= 0)
        l->ended_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->ended_fd < 0) {
        free_loop(l);
        return NULL;
    }
    return l;
}

/* The counter goes on where the session before ended, or at 0 in a new region. */
static int take_base(struct hfd_loop *l, const char **ret_reason)
{
    const struct hf_region *r = &l->region;
    uint32_t base = l->config.base;

    *ret_reason = NULL;
    /* Acquire: whoever had the region before is done with it. */
    if (atomic_load_explicit(&r->engine->lost.value, memory_order_acquire) != 0)
        *ret_reason = "the region is marked lost";
    else if (atomic_load_explicit(&r->engine->submitted.value, memory_order_acquire) != base)
        *ret_reason = "submitted is not at the base round";
    else if (atomic_load_explicit(&r->engine->consumed.value, memory_order_acquire) != base)
        *ret_reason = "consumed is not at the base round: the region is not quiescent";
    else if (atomic_load_explicit(&r->engine->gathered.value, memory_order_acquire) != base)
        *ret_reason = "gathered is not at the base round: the region is not quiescent";
    else if (hf_past(atomic_load_explicit(&r->daemon->retired.value, memory_order_acquire), base) > 0)
        *ret_reason = "retired is past the base round";
    else if (hf_past(atomic_load_explicit(&r->shared->released.value, memory_order_acquire), base) > 0)
        *ret_reason = "released is past the base round";
    if (*ret_reason)
        return -EINVAL;
    hf_release(r, base);
    /* Release: as at the end of a round ("rows, retired"). */
    atomic_store_explicit(&r->daemon->retired.value, base, memory_order_release);
    /* Nobody sleeps; a predecessor that was killed in its sleep said so for ever. */
    atomic_store_explicit(&r->daemon->waiting.value, 0, memory_order_relaxed);
    return 0;
}

/* With every signal blocked: they are the interpreter's, and must not end libzmq's calls here. */
static int start_thread(struct hfd_loop *l)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    int r;

    r = pthread_attr_init(&attributes);
    if (r != 0)
        return -r;
    r = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (r == 0) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&l->thread, &attributes, hfd_loop_main, l);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (r == 0)
        pthread_setname_np(l->thread, "hfd-round");
    pthread_attr_destroy(&attributes);
    return -r;
}

/* Everything but the thread. */
static int prepare(struct hfd_loop *l, int region_fd, const char **ret_reason)
{
    struct hf_header h;
    int r = hf_region_check(region_fd, &h, ret_reason);

    if (r < 0)
        return r;
    *ret_reason = "the region cannot be mapped";
    r = hf_region_map(region_fd, &h, HF_SIDE_DAEMON, &l->region);
    if (r < 0)
        return r;
    l->lock_error = hf_region_lock(&l->region);
    r = take_base(l, ret_reason);
    if (r < 0)
        return r;
    *ret_reason = "out of memory";
    return hfd_wire_init(&l->wire, &l->region, l->config.session);
}

int hfd_loop_start(int region_fd, const struct hfd_config *c, struct hfd_loop **ret_loop, const char **ret_reason)
{
    struct hfd_loop *l;
    int r;

    *ret_reason = config_fault(c);
    if (*ret_reason)
        return -EINVAL;
    l = new_loop(c);
    if (!l) {
        *ret_reason = "out of memory or file descriptors";
        return -ENOMEM;
    }
    r = prepare(l, region_fd, ret_reason);
    if (r == 0) {
        /* The engine sees a phase and a beat from READY on, not only from the thread's first turn. */
        atomic_store_explicit(&l->region.daemon->phase.value, HF_PHASE_RUNNING, memory_order_relaxed);
        atomic_store_explicit(&l->shown_phase, HF_PHASE_RUNNING, memory_order_relaxed);
        *ret_reason = "no thread for the round loop";
        r = start_thread(l);
    }
    if (r < 0) {
        if (l->region.base)
            hf_region_unmap(&l->region);
        free_loop(l);
        return r;
    }
    *ret_reason = NULL;
    *ret_loop = l;
    return 0;
}

int hfd_loop_join(struct hfd_loop *l, uint64_t timeout_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_nsec = (long)(timeout_ns % 1000000000)};
    struct pollfd ended = {.fd = l->ended_fd, .events = POLLIN};

    if (l->joined)
        return 0;
    if (ppoll(&ended, 1, &ts, NULL) <= 0)
        return -ETIMEDOUT;
    pthread_join(l->thread, NULL);
    l->joined = true;
    return 0;
}

int hfd_loop_free(struct hfd_loop *l)
{
    if (!l->joined)
        return -EBUSY;
    free_loop(l);
    return 0;
}
