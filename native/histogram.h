/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A histogram of durations: one thread counts, any thread reads while it does. Relaxed atomics, no lock: a snapshot may
 * be one duration ahead in one bucket and behind in the sum, which no reader of metrics can tell.
 */
#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdatomic.h>
#include <stdint.h>

/* cffi:begin */
#define HFD_BUCKETS 50 /* two an octave from 1 us (1, 1.5, 2, 3, 4, 6 us ...), the last is everything above 16.8 s */

/* A copy for the reader. Bucket i counts durations <= hfd_bucket_ns(i) that are in no bucket before it. */
struct hfd_histogram_view {
    uint64_t count;
    uint64_t sum_ns;
    uint64_t max_ns;
    uint64_t bucket[HFD_BUCKETS];
};

/* The upper bound of a bucket; UINT64_MAX for the last. */
uint64_t hfd_bucket_ns(uint32_t bucket);
/* The duration that a share (0 to 1) of all counted did not exceed: a bucket's upper bound, max_ns at most. 0 if none. */
uint64_t hfd_histogram_quantile(const struct hfd_histogram_view *view, double share);
/* cffi:end */

struct hfd_histogram {
    _Atomic uint64_t sum_ns;
    _Atomic uint64_t max_ns;
    _Atomic uint64_t bucket[HFD_BUCKETS];
};

void hfd_histogram_add(struct hfd_histogram *h, uint64_t ns);
void hfd_histogram_read(const struct hfd_histogram *h, struct hfd_histogram_view *ret_view);

#endif
