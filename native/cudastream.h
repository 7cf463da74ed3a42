/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA stream as a stream of the engine (stream.h). It enqueues copies, word writes and word waits and launches no kernel. The
 * engine thread must have the stream's context current; other threads get it here. What takes and gives memory works while a stream
 * is captured, and never waits for the engine's stream.
 */
#ifndef CUDASTREAM_H
#define CUDASTREAM_H

#include "cudadriver.h"
#include "stream.h"

/* cffi:begin */
#define HFC_MARKERS 64 /* markers that can be told apart; an older one is reached where a newer one is */
#define HFC_REGIONS 64

struct hfc_stream;
/* Takes the stream behind a handle, in this thread's context. Returns 0; -EINVAL (the legacy or the per-thread default stream),
   -EBUSY (capturing), -ENOTCONN (no context is current, or another than the stream's), else as the driver says; *ret_reason in a
   static text. */
int hfc_open(struct hfc_driver *d, uint64_t handle, struct hfc_stream **ret_stream, const char **ret_reason);
/* Gives back what its memory was. -EBUSY, and nothing is done, while a region is kept or the stream is not past everything (within
   timeout_ns): then it is the caller's choice to leave it. The handle stays the caller's. */
int hfc_close(struct hfc_stream *s, uint64_t timeout_ns);
const struct hfe_stream *hfc_ops(struct hfc_stream *s);
int hfc_use(struct hfc_stream *s); /* makes its context this thread's */
/* Regions are only noted, not registered with the device: for synchronous rounds where it cannot. Writes and waits fail then. */
void hfc_unregistered(struct hfc_stream *s);
/* Whether the device has other addresses for registered memory than the CPU: known once a region is kept. */
int hfc_aliases(const struct hfc_stream *s);
/* How several copies to the region are enqueued: 0 one by one, 1 the flat ones in one call, 2 all in one. 0 or -ENOTSUP. */
int hfc_gather_copies(struct hfc_stream *s, int how);
uint64_t hfc_kept(const struct hfc_stream *s); /* regions registered, ever */

/* Markers: of everything enqueued so far, from 1. One thread at a time. -errno as the driver says. */
int hfc_marker(struct hfc_stream *s, uint64_t *ret_marker);
int hfc_reached(struct hfc_stream *s, uint64_t marker); /* 1, 0 */
int hfc_wait(struct hfc_stream *s, uint64_t marker, uint64_t timeout_ns); /* 0 or -ETIMEDOUT: it sleeps between looks */

/* For self-test, tests and benchmarks; kind: HFC_TO_HOST ... of memory that is pinned or the device's. */
enum hfc_kind { HFC_TO_HOST, HFC_TO_DEVICE, HFC_ON_DEVICE };
int hfc_copy(struct hfc_stream *s, void *to, const void *from, uint64_t bytes, int kind);
/* A word of a kept region, or of memory from hfc_host_alloc. */
int hfc_write_word(struct hfc_stream *s, void *word, uint32_t value);
int hfc_wait_word(struct hfc_stream *s, void *word, uint32_t value);
int hfc_alloc(struct hfc_stream *s, uint64_t bytes, void **ret_memory); /* device memory, all 0 */
void hfc_free(struct hfc_stream *s, void *memory);                     /* kept until hfc_close */
int hfc_host_alloc(struct hfc_stream *s, uint64_t bytes, void **ret_memory); /* pinned, all 0 */
int hfc_host_free(struct hfc_stream *s, void *memory);
/* Loads a module that this process has never loaded, and unloads it. Any thread. */
int hfc_load_module(struct hfc_stream *s);
/* cffi:end */

#endif
