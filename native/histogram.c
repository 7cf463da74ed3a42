/* SPDX-License-Identifier: Apache-2.0 */
#include "histogram.h"

#define FIRST_NS UINT64_C(1000)

uint64_t hfd_bucket_ns(uint32_t bucket)
{
    if (bucket >= HFD_BUCKETS - 1)
        return UINT64_MAX;
    return (bucket % 2 ? FIRST_NS * 3 / 2 : FIRST_NS) << bucket / 2;
}

static uint32_t bucket_of(uint64_t ns)
{
    uint64_t octaves = (ns - (ns != 0)) / FIRST_NS; /* 0 up to the first bound, so that bounds belong to their bucket */
    uint32_t octave = octaves ? 64 - (uint32_t)__builtin_clzll(octaves) : 0;
    uint32_t bucket = octave ? octave * 2 - 1 : 0;

    if (bucket >= HFD_BUCKETS - 1)
        return HFD_BUCKETS - 1;
    return ns > hfd_bucket_ns(bucket) ? bucket + 1 : bucket;
}

/* One writer: load and store instead of a locked add. Relaxed: a count orders nothing. */
static void add(_Atomic uint64_t *to, uint64_t n)
{
    atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n, memory_order_relaxed);
}

void hfd_histogram_add(struct hfd_histogram *h, uint64_t ns)
{
    add(&h->bucket[bucket_of(ns)], 1);
    add(&h->sum_ns, ns);
    if (ns > atomic_load_explicit(&h->max_ns, memory_order_relaxed))
        atomic_store_explicit(&h->max_ns, ns, memory_order_relaxed);
}

void hfd_histogram_read(const struct hfd_histogram *h, struct hfd_histogram_view *ret_view)
{
    ret_view->count = 0;
    for (uint32_t i = 0; i < HFD_BUCKETS; i++) {
        ret_view->bucket[i] = atomic_load_explicit(&h->bucket[i], memory_order_relaxed);
        ret_view->count += ret_view->bucket[i]; /* count and buckets agree in every view */
    }
    ret_view->sum_ns = atomic_load_explicit(&h->sum_ns, memory_order_relaxed);
    ret_view->max_ns = atomic_load_explicit(&h->max_ns, memory_order_relaxed);
}

uint64_t hfd_histogram_quantile(const struct hfd_histogram_view *view, double share)
{
    double wanted = share * (double)view->count;
    uint64_t below = 0;

    for (uint32_t i = 0; i < HFD_BUCKETS && view->count > 0; i++) {
        below += view->bucket[i];
        if (below > 0 && (double)below >= wanted) {
            uint64_t bound = hfd_bucket_ns(i);

            return bound < view->max_ns ? bound : view->max_ns;
        }
    }
    return 0;
}
