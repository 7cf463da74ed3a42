/* SPDX-License-Identifier: Apache-2.0 */
/* The words: verdicts, released, and the two places where somebody sleeps until a word moves. */
#include "hostflag.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Words lie in memory shared between processes: never FUTEX_PRIVATE. */
static int futex_wait(const _Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_nsec = (long)(timeout_ns % 1000000000)};

    return syscall(SYS_futex, word, FUTEX_WAIT, seen, &ts, NULL, 0) < 0 ? -errno : 0;
}

static void futex_wake(const _Atomic uint32_t *word, int sleepers)
{
    /* Can fail only for an address that is not mapped: ours is. */
    (void)syscall(SYS_futex, word, FUTEX_WAKE, sleepers, NULL, NULL, 0);
}

uint64_t hf_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

bool hf_decide(const struct hf_region *r, uint32_t t, enum hf_verdict v)
{
    uint64_t open = hf_verdict_pack(t, HF_OPEN);

    /* Release: the reply written before an OK is seen by whoever acquires the verdict ("reply, verdict").
       Acquire on failure: the loser sees what the winner wrote before it decided. */
    return atomic_compare_exchange_strong_explicit(hf_verdict_of(r, t), &open, hf_verdict_pack(t, v),
                                                   memory_order_acq_rel, memory_order_acquire);
}

int hf_verdict_load(const struct hf_region *r, uint32_t t)
{
    /* Acquire: pairs with hf_decide ("reply, verdict"). */
    uint64_t word = atomic_load_explicit(hf_verdict_of(r, t), memory_order_acquire);

    if ((uint32_t)(word >> 32) != t)
        return -ESTALE;
    return (uint32_t)word < HF_VERDICT_MAX ? (int)(uint32_t)word : HF_VERDICT_MAX;
}

void hf_release(const struct hf_region *r, uint32_t t)
{
    _Atomic uint32_t *released = &r->shared->released.value;
    uint32_t now = atomic_load_explicit(released, memory_order_acquire);

    /* A maximum, never a plain store: a side that comes late must not take the stream's release back.
       Release: verdict and reply are seen by the stream that goes on ("verdict, released"). */
    while (hf_past(t, now) > 0)
        if (atomic_compare_exchange_weak_explicit(released, &now, t, memory_order_acq_rel, memory_order_acquire))
            break;
    /* "released, parked": mirror of hf_released_wait. Either the sleeper sees released, or we see it parked. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&r->engine->parked.value, memory_order_relaxed) != 0)
        futex_wake(released, INT_MAX);
}

int hf_released_wait(const struct hf_region *r, uint32_t t, uint64_t timeout_ns)
{
    _Atomic uint32_t *released = &r->shared->released.value;
    uint64_t start = hf_now_ns();
    int result = 0;

    atomic_fetch_add_explicit(&r->engine->parked.value, 1, memory_order_relaxed);
    /* "released, parked": mirror of hf_release. */
    atomic_thread_fence(memory_order_seq_cst);
    for (;;) {
        /* Acquire: pairs with hf_release ("verdict, released"). */
        uint32_t now = atomic_load_explicit(released, memory_order_acquire);
        uint64_t waited = hf_now_ns() - start;

        if (hf_past(now, t) >= 0)
            break;
        if (waited >= timeout_ns) {
            result = -ETIMEDOUT;
            break;
        }
        futex_wait(released, now, timeout_ns - waited);
    }
    atomic_fetch_sub_explicit(&r->engine->parked.value, 1, memory_order_relaxed);
    return result;
}

void hf_doorbell_ring(const struct hf_region *r, uint32_t t)
{
    /* Release: the CPU header is seen by whoever acquires submitted ("header, submitted"). */
    atomic_store_explicit(&r->engine->submitted.value, t, memory_order_release);
    /* "submitted, waiting": mirror of hf_doorbell_wait. Either the sleeper sees submitted, or we see it waiting. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&r->daemon->waiting.value, memory_order_relaxed) != 0)
        futex_wake(&r->engine->submitted.value, 1);
}

void hf_doorbell_wait(const struct hf_region *r, uint32_t seen, uint64_t timeout_ns)
{
    atomic_store_explicit(&r->daemon->waiting.value, 1, memory_order_relaxed);
    /* "submitted, waiting": mirror of hf_doorbell_ring. */
    atomic_thread_fence(memory_order_seq_cst);
    /* The kernel compares once more under its own lock: a ring between this load and the sleep is not lost. */
    if (atomic_load_explicit(&r->engine->submitted.value, memory_order_acquire) == seen)
        futex_wait(&r->engine->submitted.value, seen, timeout_ns);
    atomic_store_explicit(&r->daemon->waiting.value, 0, memory_order_relaxed);
}

void hf_doorbell_nudge(const struct hf_region *r)
{
    futex_wake(&r->engine->submitted.value, 1);
}
