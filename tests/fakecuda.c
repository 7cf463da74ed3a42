/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for libcuda.so.1, for machines without a GPU: device memory is the heap's, a stream is a thread that runs a FIFO. It is as
 * strict as the driver about what tests depend on: a word has to be registered, a parked stream holds up whoever loads a module,
 * unregisters or frees memory. The fake_ functions are the tests'.
 */
#include "cudadriver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define INVALID_VALUE 1
#define ALREADY_REGISTERED 712
#define NOT_REGISTERED 713
#define PLACES 256
#define ATTRIBUTES 256
#define STREAMS 64 /* further ones count as those before them */

struct CUevent_st {
    _Atomic uint64_t recorded, reached;
};

struct op {
    struct op *next;
    enum { COPY, FILL, WRITE, WAIT, EVENT, END } kind;
    unsigned char *to;
    const unsigned char *from;
    size_t to_pitch, from_pitch, width, height;
    uint32_t value;
    CUevent event;
    uint64_t number;
};

struct CUstream_st {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct op *first, **last;
    unsigned number; /* of the process's streams */
    _Atomic uint64_t enqueued, done;
    _Atomic int capturing;
};

struct CUctx_st {
    int unused;
};

static struct CUctx_st context;
static _Thread_local CUcontext current;
static _Thread_local int capture_mode; /* CU_STREAM_CAPTURE_MODE_GLOBAL */
static _Atomic int parked, parked_of[STREAMS], frozen, corrupt_in, stuck, queues, captures, captures_broken;
static _Atomic unsigned streams;
static _Atomic uint64_t held_up, events;
static int attributes[ATTRIBUTES];
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const unsigned char *base;
    size_t bytes;
    int pinned; /* by cuMemHostAlloc */
} places[PLACES];

static void nap(void)
{
    struct timespec ts = {.tv_nsec = 50000};

    nanosleep(&ts, NULL);
}

/* ---- the device ---- */

static void corrupt(unsigned char *to)
{
    int left = atomic_load(&corrupt_in);

    if (left > 0 && atomic_fetch_sub(&corrupt_in, 1) == 1)
        to[0] ^= 1;
}

/* Whether a stream that shares this one's queue is parked. */
static bool held_up_by_queue(CUstream s)
{
    unsigned n = (unsigned)atomic_load(&queues);

    for (unsigned i = 0; n > 0 && i < STREAMS; i++)
        if (i % n == s->number % n && atomic_load(&parked_of[i]))
            return true;
    return false;
}

static void run(CUstream s, const struct op *op)
{
    switch (op->kind) {
    case COPY:
        for (size_t i = 0; i < op->height; i++)
            memcpy(op->to + i * op->to_pitch, op->from + i * op->from_pitch, op->width);
        corrupt(op->to);
        break;
    case FILL:
        memset(op->to, (int)op->value, op->width);
        break;
    case WRITE:
        atomic_store_explicit((_Atomic uint32_t *)(void *)op->to, op->value, memory_order_release);
        break;
    case WAIT:
        atomic_fetch_add(&parked_of[s->number], 1);
        atomic_fetch_add(&parked, 1);
        while ((int32_t)(atomic_load_explicit((_Atomic uint32_t *)(void *)op->to, memory_order_acquire) - op->value) < 0 || atomic_load(&stuck))
            nap();
        atomic_fetch_sub(&parked, 1);
        atomic_fetch_sub(&parked_of[s->number], 1);
        break;
    case EVENT:
        atomic_store_explicit(&op->event->reached, op->number, memory_order_release);
        break;
    case END:
        break;
    }
}

static void *stream_main(void *argument)
{
    CUstream s = argument;
    bool end = false;

    while (!end) {
        struct op *op;

        pthread_mutex_lock(&s->lock);
        while (!s->first)
            pthread_cond_wait(&s->more, &s->lock);
        op = s->first;
        s->first = op->next;
        if (!s->first)
            s->last = &s->first;
        pthread_mutex_unlock(&s->lock);
        while (atomic_load(&frozen) && op->kind != END)
            nap();
        while (op->kind != END && held_up_by_queue(s))
            nap();
        run(s, op);
        end = op->kind == END;
        free(op);
        atomic_fetch_add_explicit(&s->done, 1, memory_order_release);
    }
    return NULL;
}

static CUresult enqueue(CUstream s, struct op what)
{
    struct op *op = malloc(sizeof(*op));

    if (!s || current != &context)
        return CUDA_ERROR_INVALID_CONTEXT;
    *op = what;
    op->next = NULL;
    pthread_mutex_lock(&s->lock);
    *s->last = op;
    s->last = &op->next;
    atomic_fetch_add_explicit(&s->enqueued, 1, memory_order_relaxed);
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    return CUDA_SUCCESS;
}

static CUresult copy(CUstream s, const void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height)
{
    return enqueue(s, (struct op){.kind = COPY, .to = (unsigned char *)to, .to_pitch = to_pitch, .from = from, .from_pitch = from_pitch,
                                  .width = width, .height = height});
}

#define POINTER(address) ((void *)(uintptr_t)(address))

/* What the driver does as soon as nothing is parked. */
static void wait_for_release(void)
{
    if (!atomic_load(&parked))
        return;
    atomic_fetch_add(&held_up, 1);
    while (atomic_load(&parked))
        nap();
}

/* ---- registered memory ---- */

static int place_of(const void *memory)
{
    const unsigned char *at = memory;

    for (int i = 0; i < PLACES; i++)
        if (places[i].base && at >= places[i].base && at < places[i].base + places[i].bytes)
            return i;
    return -1;
}

static CUresult take_place(const void *memory, size_t bytes, int pinned)
{
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

    pthread_mutex_lock(&places_lock);
    if (place_of(memory) >= 0)
        r = ALREADY_REGISTERED;
    for (int i = 0; i < PLACES && r == CUDA_ERROR_OUT_OF_MEMORY; i++)
        if (!places[i].base) {
            places[i].base = memory;
            places[i].bytes = bytes;
            places[i].pinned = pinned;
            r = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&places_lock);
    return r;
}

static CUresult leave_place(const void *memory)
{
    int i;

    wait_for_release();
    pthread_mutex_lock(&places_lock);
    i = place_of(memory);
    if (i >= 0)
        places[i].base = NULL;
    pthread_mutex_unlock(&places_lock);
    return i >= 0 ? CUDA_SUCCESS : NOT_REGISTERED;
}

static CUresult word_op(CUstream s, int kind, CUdeviceptr word, uint32_t value)
{
    int there;

    pthread_mutex_lock(&places_lock);
    there = place_of(POINTER(word));
    pthread_mutex_unlock(&places_lock);
    return there < 0 ? INVALID_VALUE : enqueue(s, (struct op){.kind = kind, .to = POINTER(word), .value = value});
}

#include "fakecuda_api.h"
