/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The soft stream: a stream run by a thread of its own. It sleeps in a futex while parked or empty, so it does not eat
 * the core that the others need. A real engine backend for machines without a GPU.
 */
#ifndef SOFTSTREAM_H
#define SOFTSTREAM_H

#include "hostflag.h"
#include "stream.h"

/* cffi:begin */
#define HFS_DEPTH 1024 /* operations accepted before an enqueue blocks: about what a parked CUDA stream takes */

struct hfs_stream;
struct hfe_stream;
/* Returns 0 or -errno. */
int hfs_open(struct hfs_stream **ret_stream);
/* The stream as a session uses it. Valid while s is open. A wait on the released word of a region it keeps counts itself in parked and
   sleeps in the futex protocol of hf_released_wait; waits on other words nap. */
const struct hfe_stream *hfs_ops(struct hfs_stream *s);
/* Runs what is enqueued, then ends the thread. -EBUSY (nothing is freed, and the stream goes on) where it does not get there
   in timeout_ns. Nobody may enqueue meanwhile. */
int hfs_close(struct hfs_stream *s, uint64_t timeout_ns);
/* Simulated GPU work: the stream is busy for this long and uses no CPU. */
int hfs_work(struct hfs_stream *s, uint64_t ns);
/* Calls fn(argument) in the stream's thread: a kernel. */
int hfs_call(struct hfs_stream *s, void (*fn)(void *), void *argument);
int hfs_copy(struct hfs_stream *s, void *to, const void *from, uint64_t bytes);
/* A marker of everything enqueued so far; hfs_reached is true once the stream is past it. Markers only grow. */
uint64_t hfs_marker(const struct hfs_stream *s);
bool hfs_reached(const struct hfs_stream *s, uint64_t marker);
int hfs_wait(struct hfs_stream *s, uint64_t marker, uint64_t timeout_ns); /* 0 or -ETIMEDOUT */
/* Fault injection: the n-th enqueue from now on returns -error and enqueues nothing (0: none does). onwards: so do all after
   it, until this is called again. */
void hfs_fail_nth(struct hfs_stream *s, uint32_t n, int error, bool onwards);
/* How many regions were made known to it, ever: what a GPU's driver would have been asked to register. */
uint64_t hfs_kept(struct hfs_stream *s);
/* cffi:end */

#endif
