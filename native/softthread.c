/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The soft stream's thread. It stands where the GPU does, so its loads and stores are as explicit as a GPU's: a write is a
 * release, a wait an acquire. It takes no lock.
 */
#include "softqueue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STRANGER_NAP_NS 50000 /* between two looks at a word that is no kept region's */

/* From the region, where another process may write meanwhile: a reply that comes too late. Each id is loaded whole, so
   that it is legal, be it the old one or the new. Relaxed: where the verdict is OK, the wait before has ordered them. */
static void copy_words(unsigned char *to, const unsigned char *from, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = atomic_load_explicit((const _Atomic uint64_t *)(from + at), memory_order_relaxed);

        memcpy(to + at, &word, sizeof(word));
    }
}

static void run_copy(const struct hfs_op *op)
{
    if (op->copy.words) {
        copy_words(op->copy.to, op->copy.from, op->copy.width);
        return;
    }
    for (uint64_t row = 0; row < op->copy.height; row++)
        memcpy(op->copy.to + row * op->copy.to_pitch, op->copy.from + row * op->copy.from_pitch, op->copy.width);
}

static void run_wait(const struct hfs_until *w)
{
    if (w->region) {
        while (hf_released_wait(w->region, w->value, HFS_LONG_NS) == -ETIMEDOUT)
            continue;
        return;
    }
    /* Acquire: what was written before the word is seen by everything behind this wait. */
    while (hf_past(atomic_load_explicit(w->word, memory_order_acquire), w->value) < 0)
        hf_sleep_ns(STRANGER_NAP_NS);
}

static void run_work(uint64_t ns)
{
    uint64_t until = hf_now_ns() + ns;
    struct timespec ts = {.tv_sec = (time_t)(until / 1000000000), .tv_nsec = (long)(until % 1000000000)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        continue;
}

static void run(const struct hfs_op *op)
{
    switch (op->kind) {
    case OP_COPY:
        run_copy(op);
        break;
    case OP_WRITE:
    case OP_WRITE_WAIT:
        /* Release: every copy before is visible to whoever sees the value ("rows, gathered"; "reply copied, consumed"). */
        atomic_store_explicit(op->write.word, op->write.value, memory_order_release);
        if (op->kind == OP_WRITE_WAIT)
            run_wait(&op->write.wait);
        break;
    case OP_WAIT:
        run_wait(&op->wait);
        break;
    case OP_STAMP:
        *op->stamp = hf_now_ns();
        break;
    case OP_CALL:
        op->call.fn(op->call.argument);
        break;
    case OP_WORK:
        run_work(op->work_ns);
        break;
    case OP_FREE:
        free(op->memory);
        break;
    }
}

static void finish_one(struct hfs_stream *s, uint64_t n)
{
    /* Release: what the operation did is seen by whoever sees it done (hfs_reached), and its place may be filled again. */
    atomic_store_explicit(&s->done, n, memory_order_release);
    /* Release: a waiter that sleeps on the new value has seen done, too ("done, lower half"). */
    atomic_store_explicit(&s->done_low, (uint32_t)n, memory_order_release);
    /* "done, waiters": mirror of hfs_await. Either the waiter sees done, or we see the waiter. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&s->waiters, memory_order_relaxed))
        hfs_futex_wake(&s->done_low);
}

static void rest(struct hfs_stream *s, uint64_t done)
{
    atomic_store_explicit(&s->idle, 1, memory_order_relaxed);
    /* "enqueued, idle": mirror of hfs_ring. Either we see the operation, or whoever enqueued it sees us idle. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&s->enqueued, memory_order_relaxed) == done && !atomic_load_explicit(&s->ending, memory_order_relaxed))
        hfs_futex_wait(&s->idle, 1, HFS_LONG_NS);
    atomic_store_explicit(&s->idle, 0, memory_order_relaxed);
}

void *hfs_thread(void *argument)
{
    struct hfs_stream *s = argument;
    uint64_t n = 0;

    (void)hf_nap_precise(); /* without it simulated work only lasts some 50 us longer */
    for (;;) {
        /* Acquire: pairs with enqueue. */
        if (atomic_load_explicit(&s->enqueued, memory_order_acquire) != n) {
            run(&s->ops[n % HFS_DEPTH]);
            finish_one(s, ++n);
        } else if (atomic_load_explicit(&s->ending, memory_order_acquire)) {
            return NULL;
        } else {
            rest(s, n);
        }
    }
}
