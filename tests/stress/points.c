/* SPDX-License-Identifier: Apache-2.0 */
/* Where threads are held up and daemons die. Everything here is relaxed or a thread's own: it must not order the product. */
#include "stress.h"

#include <sched.h>
#include <setjmp.h>
#include <sys/eventfd.h>
#include <unistd.h>

static _Atomic uint32_t threads;
static _Atomic uint64_t mask = 1023;
static _Atomic(struct stress_daemon *) starting;
static _Thread_local uint64_t state;
static _Thread_local struct stress_daemon *self;
static _Thread_local jmp_buf grave;

void *__real_hfd_loop_main(void *loop);
void *__wrap_hfd_loop_main(void *loop);

uint64_t stress_random(void)
{
    if (state == 0)
        state = (stress_options.seed + 1) * UINT64_C(0x9E3779B97F4A7C15) +
                atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) * UINT64_C(0xD1B54A32D192ED03);
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

void stress_intensity(uint32_t one_in)
{
    atomic_store_explicit(&mask, one_in ? one_in - 1 : UINT64_MAX, memory_order_relaxed);
}

struct stress_daemon *stress_self(void)
{
    return self;
}

static void daemon_point(struct stress_daemon *d)
{
    uint64_t freeze = atomic_load_explicit(&d->freeze_ns, memory_order_relaxed);
    int killing = atomic_load_explicit(&d->killing, memory_order_relaxed);

    if (freeze) {
        atomic_store_explicit(&d->freeze_ns, 0, memory_order_relaxed);
        hf_sleep_ns(freeze);
    }
    if (killing == 1)
        longjmp(grave, 1);
    if (killing > 1)
        atomic_store_explicit(&d->killing, killing - 1, memory_order_relaxed);
}

void stress_point(void)
{
    uint64_t r = stress_random();

    if (self)
        daemon_point(self);
    if (r & atomic_load_explicit(&mask, memory_order_relaxed))
        return;
    r = stress_random() >> 8;
    if (r % 32 == 0)
        hf_sleep_ns((r >> 8) % 6000000); /* past a deadline */
    else if (r % 4 == 0)
        hf_sleep_ns((r >> 8) % 300000);
    else
        sched_yield();
}

void stress_starting(struct stress_daemon *d)
{
    atomic_store(&starting, d);
}

void stress_started(void)
{
    while (atomic_load(&starting))
        sched_yield();
}

/* What the kernel does for a process that is killed: map and socket are gone, and everything else stays as it was. */
static void bury(struct hfd_loop *l, struct stress_daemon *d)
{
    self = NULL;
    atomic_store(&d->dead, 1);
    if (!atomic_load(&d->unmapped)) {
        stress_map_drop(&l->region);
        close(l->config.socket);
    }
    (void)eventfd_write(l->ended_fd, 1);
}

void *__wrap_hfd_loop_main(void *loop)
{
    self = atomic_exchange(&starting, NULL);
    if (setjmp(grave) == 0)
        __real_hfd_loop_main(loop);
    else
        bury(loop, self);
    self = NULL;
    return NULL;
}
