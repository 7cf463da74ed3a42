/* SPDX-License-Identifier: Apache-2.0 */
/* The soft stream's enqueuing side: operations sit in a ring; whoever enqueues takes a lock. */
#include "softqueue.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void hfs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000), .tv_nsec = (long)(timeout_ns % 1000000000)};

    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &ts, NULL, 0);
}

void hfs_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void hfs_ring(struct hfs_stream *s)
{
    /* "enqueued, idle": mirror of rest. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&s->idle, memory_order_relaxed)) {
        atomic_store_explicit(&s->idle, 0, memory_order_relaxed);
        hfs_futex_wake(&s->idle);
    }
}

int hfs_await(struct hfs_stream *s, uint64_t n, uint64_t timeout_ns)
{
    uint64_t start = hf_now_ns();
    int r = 0;

    atomic_fetch_add_explicit(&s->waiters, 1, memory_order_relaxed);
    /* "done, waiters": mirror of finish_one. */
    atomic_thread_fence(memory_order_seq_cst);
    for (;;) {
        /* Acquire: pairs with finish_one ("done, lower half"). With an older done than this, nobody would wake us. */
        uint32_t low = atomic_load_explicit(&s->done_low, memory_order_acquire);
        uint64_t waited;

        if (atomic_load_explicit(&s->done, memory_order_acquire) >= n)
            break;
        waited = hf_now_ns() - start;
        if (waited >= timeout_ns) {
            r = -ETIMEDOUT;
            break;
        }
        hfs_futex_wait(&s->done_low, low, timeout_ns - waited < HFS_LONG_NS ? timeout_ns - waited : HFS_LONG_NS);
    }
    atomic_fetch_sub_explicit(&s->waiters, 1, memory_order_relaxed);
    return r;
}

static const struct hf_region *region_of(const struct hfs_stream *s, const _Atomic uint32_t *word)
{
    for (int i = 0; i < HFS_REGIONS; i++)
        if (s->keeps[i].used && &s->keeps[i].region.shared->released.value == word)
            return &s->keeps[i].region;
    return NULL;
}

static int enqueue(struct hfs_stream *s, struct hfs_op op)
{
    uint64_t n;
    int r = 0;

    pthread_mutex_lock(&s->lock);
    if (s->fail_in > 0 && --s->fail_in == 0) {
        r = -s->fail_error;
        s->fail_in = s->fail_onwards ? 1 : 0;
        goto unlock;
    }
    if (op.kind == OP_WAIT)
        op.wait.region = region_of(s, op.wait.word);
    if (op.kind == OP_WRITE_WAIT)
        op.write.wait.region = region_of(s, op.write.wait.word);
    n = atomic_load_explicit(&s->enqueued, memory_order_relaxed);
    if (n - atomic_load_explicit(&s->done, memory_order_acquire) >= HFS_DEPTH) /* as a launch behind a full queue does */
        while (hfs_await(s, n - HFS_DEPTH + 1, HFS_LONG_NS) < 0)
            continue;
    s->ops[n % HFS_DEPTH] = op;
    /* Release: the thread sees the operation whole. */
    atomic_store_explicit(&s->enqueued, n + 1, memory_order_release);
    hfs_ring(s);
unlock:
    pthread_mutex_unlock(&s->lock);
    return r;
}

int hfs_work(struct hfs_stream *s, uint64_t ns)
{
    return enqueue(s, (struct hfs_op){.kind = OP_WORK, .work_ns = ns});
}

int hfs_call(struct hfs_stream *s, void (*fn)(void *), void *argument)
{
    return enqueue(s, (struct hfs_op){.kind = OP_CALL, .call = {fn, argument}});
}

static int enqueue_copy(void *context, void *to, uint64_t to_pitch, const void *from, uint64_t from_pitch, uint64_t width,
                        uint64_t height, enum hfe_copy kind)
{
    bool words = kind == HFE_COPY_TO_DEVICE && height == 1 && (uintptr_t)from % sizeof(uint64_t) == 0 && width % sizeof(uint64_t) == 0;

    return enqueue(context, (struct hfs_op){.kind = OP_COPY, .copy = {to, from, to_pitch, from_pitch, width, height, words}});
}

int hfs_copy(struct hfs_stream *s, void *to, const void *from, uint64_t bytes)
{
    return enqueue_copy(s, to, bytes, from, bytes, bytes, 1, HFE_COPY_ON_DEVICE);
}

static int enqueue_write(void *context, _Atomic uint32_t *word, uint32_t value)
{
    return enqueue(context, (struct hfs_op){.kind = OP_WRITE, .write = {.word = word, .value = value}});
}

static int enqueue_wait(void *context, _Atomic uint32_t *word, uint32_t value)
{
    return enqueue(context, (struct hfs_op){.kind = OP_WAIT, .wait = {.word = word, .value = value}});
}

static int enqueue_write_wait(void *context, _Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *until, uint32_t reached)
{
    return enqueue(context, (struct hfs_op){.kind = OP_WRITE_WAIT,
                                        .write = {.word = word, .value = value, .wait = {.word = until, .value = reached}}});
}

static int enqueue_stamp(void *context, uint64_t *to)
{
    return enqueue(context, (struct hfs_op){.kind = OP_STAMP, .stamp = to});
}

static int allocate(void *context, uint64_t bytes, void **ret_memory)
{
    (void)context;
    *ret_memory = calloc(1, bytes);
    return *ret_memory ? 0 : -ENOMEM;
}

static void enqueue_free(void *context, void *memory)
{
    (void)enqueue(context, (struct hfs_op){.kind = OP_FREE, .memory = memory}); /* refused: better leaked than freed too early */
}

static int keep(void *context, const struct hf_region *r)
{
    struct hfs_stream *s = context;
    int result = -ENOSPC;

    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < HFS_REGIONS && result < 0; i++)
        if (!s->keeps[i].used) {
            s->keeps[i].region = *r;
            s->keeps[i].used = true;
            s->kept++;
            result = 0;
        }
    pthread_mutex_unlock(&s->lock);
    return result;
}

static int let_go(void *context, const struct hf_region *r)
{
    struct hfs_stream *s = context;
    int result = -ENOENT;

    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < HFS_REGIONS; i++)
        if (s->keeps[i].used && s->keeps[i].region.base == r->base) {
            s->keeps[i].used = false;
            result = 0;
        }
    pthread_mutex_unlock(&s->lock);
    return result;
}

static int synchronize(void *context, uint64_t timeout_ns)
{
    return hfs_await(context, hfs_marker(context), timeout_ns);
}

static struct hfe_stream ops_of(struct hfs_stream *s)
{
    return (struct hfe_stream){
        .context = s,
        .copy2d = enqueue_copy,
        .write32 = enqueue_write,
        .wait32 = enqueue_wait,
        .write_wait32 = enqueue_write_wait,
        .stamp = enqueue_stamp,
        .alloc = allocate,
        .free = enqueue_free,
        .keep = keep,
        .let_go = let_go,
        .synchronize = synchronize,
    };
}

const struct hfe_stream *hfs_ops(struct hfs_stream *s)
{
    return &s->as_engine_sees;
}

/* ---- markers, faults ---- */

uint64_t hfs_marker(const struct hfs_stream *s)
{
    return atomic_load_explicit(&s->enqueued, memory_order_acquire);
}

bool hfs_reached(const struct hfs_stream *s, uint64_t marker)
{
    /* Acquire: pairs with finish_one. */
    return atomic_load_explicit(&s->done, memory_order_acquire) >= marker;
}

int hfs_wait(struct hfs_stream *s, uint64_t marker, uint64_t timeout_ns)
{
    return hfs_await(s, marker, timeout_ns);
}

void hfs_fail_nth(struct hfs_stream *s, uint32_t n, int error, bool onwards)
{
    pthread_mutex_lock(&s->lock);
    s->fail_in = n;
    s->fail_error = error;
    s->fail_onwards = onwards;
    pthread_mutex_unlock(&s->lock);
}

uint64_t hfs_kept(struct hfs_stream *s)
{
    uint64_t kept;

    pthread_mutex_lock(&s->lock);
    kept = s->kept;
    pthread_mutex_unlock(&s->lock);
    return kept;
}

/* ---- open and close ---- */

static int start_thread(struct hfs_stream *s)
{
    sigset_t all, before;
    int r;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = -pthread_create(&s->thread, NULL, hfs_thread, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r == 0)
        pthread_setname_np(s->thread, "hf-softstream");
    return r;
}

int hfs_open(struct hfs_stream **ret_stream)
{
    struct hfs_stream *s = aligned_alloc(HF_LINE, (sizeof(*s) + HF_LINE - 1) / HF_LINE * HF_LINE);
    int r;

    if (!s)
        return -ENOMEM;
    memset(s, 0, sizeof(*s));
    s->as_engine_sees = ops_of(s);
    pthread_mutex_init(&s->lock, NULL);
    r = start_thread(s);
    if (r < 0) {
        pthread_mutex_destroy(&s->lock);
        free(s);
        return r;
    }
    *ret_stream = s;
    return 0;
}

int hfs_close(struct hfs_stream *s, uint64_t timeout_ns)
{
    if (hfs_await(s, hfs_marker(s), timeout_ns) < 0)
        return -EBUSY;
    atomic_store_explicit(&s->ending, 1, memory_order_release);
    hfs_ring(s);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return 0;
}
