/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream: a FIFO of copies, writes and waits that somebody else runs in order (the soft stream's thread, a GPU).
 * Every operation is only enqueued; 0 or -errno says whether that worked. engine.c knows nothing else of it.
 */
#ifndef STREAM_H
#define STREAM_H

#include "hostflag.h"

/* TO_DEVICE copies ids that another process may still write: every aligned 64-bit word is read whole. */
enum hfe_copy { HFE_COPY_TO_HOST, HFE_COPY_TO_DEVICE, HFE_COPY_ON_DEVICE };

struct hfe_stream {
    void *context;
    /* Before a submit: -errno where the stream takes no round now, such as while it is captured. NULL: it always does. */
    int (*check)(void *context);
    int (*copy2d)(void *context, void *to, uint64_t to_pitch, const void *from, uint64_t from_pitch,
                  uint64_t width, uint64_t height, enum hfe_copy kind);
    /* *word := value, after everything enqueued before is visible to whoever sees the value. */
    int (*write32)(void *context, _Atomic uint32_t *word, uint32_t value);
    /* Nothing behind this starts before (int32)(*word - value) >= 0. */
    int (*wait32)(void *context, _Atomic uint32_t *word, uint32_t value);
    /* write32 and wait32 in one driver call. NULL: two calls. */
    int (*write_wait32)(void *context, _Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *until, uint32_t reached);
    /* *to := CLOCK_MONOTONIC. NULL where the stream has no clock. */
    int (*stamp)(void *context, uint64_t *to);
    int (*alloc)(void *context, uint64_t bytes, void **ret_memory); /* device memory, all 0; never on the engine thread */
    /* Once the stream is past everything enqueued before. Where that cannot be enqueued, the memory is kept. */
    void (*free)(void *context, void *memory);
    /* Makes a region's memory known to the device (a GPU: registers it), for as long as the engine lives; never on the engine
       thread. 0 or -errno. */
    int (*keep)(void *context, const struct hf_region *region);
    /* Once the stream is past everything that touches the region, at the engine's end. */
    int (*let_go)(void *context, const struct hf_region *region);
    /* Waits until the stream is past everything enqueued before. 0, or -ETIMEDOUT: then it goes on. For synchronous rounds. */
    int (*synchronize)(void *context, uint64_t timeout_ns);
    /* 1: the stream is past everything that was enqueued before the last synchronize. 0: not yet. Never waits. NULL: cannot be told. */
    int (*drained)(void *context);
};

#endif
