/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA stream from inside: cudaopen.c opens and closes, cudastream.c enqueues, cudamemory.c gives and takes memory, cudacopies.c puts copies together. */
#ifndef CUDAINSIDE_H
#define CUDAINSIDE_H

#include "cudastream.h"

#include <pthread.h>

#define HFC_COPIES 64 /* that can wait to be enqueued together */

/* A kept region. Published by base, so that the engine thread reads it without a lock. */
struct hfc_keep {
    _Atomic uintptr_t base; /* 0: none */
    uint64_t bytes;
    CUdeviceptr device; /* the base as the device sees it */
    bool registered;
};

struct hfc_memory {
    struct hfc_memory *next;
    CUdeviceptr memory;
};

struct hfc_stream {
    struct hfe_stream ops;
    struct hfc_driver *driver;
    CUcontext context;
    CUstream stream, side; /* side: ours, for what must not wait for the engine's */
    CUevent side_done, drained;
    CUevent markers[HFC_MARKERS];
    uint64_t marker; /* the newest */
    bool noted_only; /* regions are not registered */
    pthread_mutex_t lock; /* of who gives and takes memory */
    struct hfc_keep keeps[HFC_REGIONS];
    struct hfc_memory *freed; /* under the lock */
    _Atomic uint64_t kept;

    /* the engine thread's: copies that wait for the next operation */
    int gather; /* 0: none do */
    uint32_t n_flat, n_rows;
    CUdeviceptr to[HFC_COPIES], from[HFC_COPIES];
    size_t bytes[HFC_COPIES];
    CUDA_MEMCPY3D_BATCH_OP rows[HFC_COPIES];
};

/* cudastream.c: what the engine calls. */
struct hfe_stream hfc_operations(struct hfc_stream *s);
/* cudastream.c: sleeps until the event is reached; 0, -ETIMEDOUT or as the driver says. */
int hfc_await(struct hfc_stream *s, CUevent event, uint64_t timeout_ns);
/* The address of a host word as the device sees it; 0: not of a registered region. */
CUdeviceptr hfc_address(const struct hfc_stream *s, const void *word);

/* cudamemory.c: this thread in the stream's context, and not disturbed by a capture that another thread has under way, nor disturbing
   it. What hfc_enter got goes back by hfc_leave, which needs no stream any more. */
int hfc_enter(struct hfc_stream *s, int *ret_mode);
void hfc_leave(struct hfc_driver *d, int mode);
/* cudamemory.c: struct hfe_stream's. */
int hfc_keep_region(void *context, const struct hf_region *region);
int hfc_let_go_region(void *context, const struct hf_region *region);
int hfc_allocate(void *context, uint64_t bytes, void **ret_memory);
void hfc_give_back(void *context, void *memory);

/* cudacopies.c. Takes a copy to be enqueued later; false: it has to be enqueued now. */
bool hfc_copies_take(struct hfc_stream *s, void *to, uint64_t to_pitch, const void *from, uint64_t from_pitch, uint64_t width,
                     uint64_t height);
/* Enqueues what waits. */
int hfc_copies_flush(struct hfc_stream *s);

#endif
