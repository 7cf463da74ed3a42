/* SPDX-License-Identifier: Apache-2.0 */
/* The soft stream, inside: its operations, its words, and what the enqueuing side and the thread share. */
#ifndef SOFTQUEUE_H
#define SOFTQUEUE_H

#include "softstream.h"

#include <pthread.h>

#define HFS_REGIONS 32           /* kept at a time: a few lost ones beside the one in use */
#define HFS_LONG_NS 1000000000   /* a sleep that ends by being woken; looked after once a second for good measure */

enum hfs_kind { OP_COPY, OP_WRITE, OP_WAIT, OP_WRITE_WAIT, OP_STAMP, OP_CALL, OP_WORK, OP_FREE };

struct hfs_until {
    _Atomic uint32_t *word;
    uint32_t value;
    const struct hf_region *region; /* whose released word it is, or NULL */
};

struct hfs_op {
    enum hfs_kind kind;
    union {
        struct {
            unsigned char *to;
            const unsigned char *from;
            uint64_t to_pitch, from_pitch, width, height;
            bool words; /* one row of aligned 64-bit words, each loaded whole */
        } copy;
        struct {
            _Atomic uint32_t *word;
            uint32_t value;
            struct hfs_until wait;
        } write;
        struct hfs_until wait;
        uint64_t *stamp;
        struct {
            void (*fn)(void *);
            void *argument;
        } call;
        uint64_t work_ns;
        void *memory;
    };
};

struct hfs_stream {
    struct hfs_op ops[HFS_DEPTH];
    _Alignas(HF_LINE) _Atomic uint64_t enqueued;
    _Alignas(HF_LINE) _Atomic uint64_t done;
    _Atomic uint32_t done_low; /* lower half of done: what those who wait for progress sleep on */
    _Atomic uint32_t waiters;  /* how many do */
    _Atomic uint32_t idle;     /* 1: the thread sleeps, or is about to, because there is nothing to do */
    _Atomic uint32_t ending;
    pthread_t thread;
    pthread_mutex_t lock; /* of whoever enqueues */
    struct hfe_stream as_engine_sees; /* hfs_ops */
    /* under the lock */
    uint32_t fail_in;
    int fail_error;
    bool fail_onwards;
    uint64_t kept; /* ever */
    struct {
        struct hf_region region;
        bool used;
    } keeps[HFS_REGIONS];
};

/* softstream.c. Sleeps until the stream has done n operations. 0, or -ETIMEDOUT. */
int hfs_await(struct hfs_stream *s, uint64_t n, uint64_t timeout_ns);
/* Wakes the thread if it is idle; after enqueued or ending was written. */
void hfs_ring(struct hfs_stream *s);
void hfs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void hfs_futex_wake(_Atomic uint32_t *word);
/* softthread.c: the thread; argument: struct hfs_stream. */
void *hfs_thread(void *argument);

#endif
