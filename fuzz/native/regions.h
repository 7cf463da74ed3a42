/* SPDX-License-Identifier: Apache-2.0 */
/* Geometries that fuzzers use, and regions of them in plain memory: what lies past a region is the sanitizer's. */
#ifndef REGIONS_H
#define REGIONS_H

#include "cursor.h"
#include "hostflag.h"

/* Small ones: what a geometry brings are its bounds, and those are as near in a small one. */
static const struct hf_geometry geometries[] = {
    {.slots = 4, .max_requests = 3, .state_slots = 5, .row_bytes = 16, .window = 8, .drafts = 2, .vocab = 1000,
     .ring_bytes = 65536},
    {.slots = 8, .max_requests = 4, .state_slots = 4, .row_bytes = 8, .window = 4, .drafts = 5, .vocab = INT32_MAX,
     .extra_bytes = 7, .ring_bytes = 65536},
    {.slots = 4, .max_requests = 1, .state_slots = 1, .row_bytes = 1024, .window = 1, .drafts = 1, .vocab = 1,
     .ring_bytes = 65536},
};
#define N_GEOMETRIES (sizeof(geometries) / sizeof(geometries[0]))

static inline void region_in_memory(const struct hf_geometry *g, struct hf_region *ret_region)
{
    struct hf_layout l;
    unsigned char *base;

    MUST(hf_layout_of(g, &l) == 0);
    base = aligned_alloc(HF_PART_ALIGN, l.bytes);
    MUST(base);
    memset(base, 0, l.bytes);
    *ret_region = (struct hf_region){
        .base = base,
        .geometry = *g,
        .layout = l,
        .engine = (struct hf_engine_words *)(base + l.engine_words),
        .shared = (struct hf_shared_words *)(base + l.shared_words),
        .daemon = (struct hf_daemon_words *)(base + l.daemon_words),
        .stats = (struct hf_stats *)(base + l.stats),
    };
}

#endif
