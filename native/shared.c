/* SPDX-License-Identifier: Apache-2.0 */
#include "shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct hfp_view {
    struct hf_region region;
};

int hfp_view_open(int fd, struct hfp_view **ret_view, const char **ret_reason)
{
    struct hf_header h;
    struct hfp_view *v;
    int r;

    r = hf_region_check(fd, &h, ret_reason);
    if (r < 0)
        return r;
    v = calloc(1, sizeof(*v));
    if (!v) {
        *ret_reason = "out of memory";
        return -ENOMEM;
    }
    v->region.geometry = h.geometry;
    v->region.layout = h.layout;
    v->region.base = mmap(NULL, h.layout.bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (v->region.base == MAP_FAILED) {
        r = -errno;
        *ret_reason = "the region cannot be mapped";
        free(v);
        return r;
    }
    v->region.engine = (struct hf_engine_words *)(v->region.base + h.layout.engine_words);
    v->region.shared = (struct hf_shared_words *)(v->region.base + h.layout.shared_words);
    v->region.daemon = (struct hf_daemon_words *)(v->region.base + h.layout.daemon_words);
    v->region.stats = (struct hf_stats *)(v->region.base + h.layout.stats);
    *ret_view = v;
    return 0;
}

uint32_t hfp_view_word(const struct hfp_view *v, int id)
{
    return hf_word_load(&v->region, (enum hf_word_id)id);
}

uint64_t hfp_view_verdict(const struct hfp_view *v, uint32_t slot)
{
    /* Acquire: pairs with hf_decide ("reply, verdict"). */
    return atomic_load_explicit(hf_verdict_of(&v->region, slot), memory_order_acquire);
}

uint32_t hfp_view_records(const struct hfp_view *v, uint32_t n, struct hf_record *ret_records)
{
    const struct hf_stats *stats = v->region.stats;
    /* Acquire: pairs with book, in settle.c. */
    uint64_t end = atomic_load_explicit(&stats->records, memory_order_acquire), first, now;

    if (n > HF_RECORDS)
        n = HF_RECORDS;
    if (n > end)
        n = (uint32_t)end;
    first = end - n;
    for (uint64_t i = 0; i < n; i++)
        memcpy(&ret_records[i], &stats->record[(first + i) % HF_RECORDS], sizeof(*ret_records));
    /* Acquire fence: no copy above is delayed past this load. The engine may be writing record number `now`. */
    atomic_thread_fence(memory_order_acquire);
    now = atomic_load_explicit(&stats->records, memory_order_relaxed);
    while (n > 0 && now - (end - n) >= HF_RECORDS)
        n--;
    memmove(ret_records, ret_records + (end - n - first), n * sizeof(*ret_records));
    return n;
}

int hfp_region_rebase(int fd, uint32_t base, const char **ret_reason)
{
    struct hf_header h;
    struct hf_region r;
    int result;

    result = hf_region_check(fd, &h, ret_reason);
    if (result < 0)
        return result;
    result = hf_region_map(fd, &h, HF_SIDE_ENGINE, &r);
    if (result < 0) {
        *ret_reason = "the region cannot be mapped";
        return result;
    }
    /* Relaxed: nobody else uses the region yet; handing over its fd orders all of this. */
    atomic_store_explicit(&r.engine->submitted.value, base, memory_order_relaxed);
    atomic_store_explicit(&r.engine->gathered.value, base, memory_order_relaxed);
    atomic_store_explicit(&r.engine->consumed.value, base, memory_order_relaxed);
    atomic_store_explicit(&r.shared->released.value, base, memory_order_relaxed);
    atomic_store_explicit(&r.daemon->retired.value, base, memory_order_relaxed);
    for (uint32_t i = 0; i < r.geometry.slots; i++) {
        uint32_t t = base - i;

        atomic_store_explicit(hf_verdict_of(&r, t), hf_verdict_pack(t, HF_OK), memory_order_relaxed);
    }
    hf_region_unmap(&r);
    return 0;
}

void hfp_view_close(struct hfp_view *v)
{
    munmap(v->region.base, v->region.layout.bytes);
    free(v);
}
