/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The invariants, where they can be broken: at each swap, each release, each reuse of a slot, each reply that the stream took. Loads
 * of words are relaxed here, so that no check orders what the product did not order.
 */
#include "stress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

struct stress_region stress_regions[REGIONS];
_Thread_local bool stress_private_map;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int __real_hf_region_map(int fd, const struct hf_header *h, enum hf_side side, struct hf_region *ret_region);
int __wrap_hf_region_map(int fd, const struct hf_header *h, enum hf_side side, struct hf_region *ret_region);
void __real_hf_region_unmap(struct hf_region *r);
void __wrap_hf_region_unmap(struct hf_region *r);
bool __real_hf_decide(const struct hf_region *r, uint32_t t, enum hf_verdict v);
bool __wrap_hf_decide(const struct hf_region *r, uint32_t t, enum hf_verdict v);
void __real_hf_release(const struct hf_region *r, uint32_t t);
void __wrap_hf_release(const struct hf_region *r, uint32_t t);

void stress_violation(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fputs("VIOLATION ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    _exit(3);
}

/* ---- one map ---- */

struct stress_region *stress_region_at(const void *base)
{
    for (int i = 0; i < REGIONS; i++)
        if (atomic_load_explicit(&stress_regions[i].used, memory_order_acquire) && stress_regions[i].map.base == base)
            return &stress_regions[i];
    return NULL;
}

static struct stress_region *region_of(uint64_t inode)
{
    for (int i = 0; i < REGIONS; i++)
        if (atomic_load(&stress_regions[i].used) && stress_regions[i].inode == inode)
            return &stress_regions[i];
    return NULL;
}

static int map_first(int fd, const struct hf_header *h, uint64_t inode, struct hf_region *ret_region)
{
    int i = 0, r;

    while (i < REGIONS && atomic_load(&stress_regions[i].used))
        i++;
    if (i == REGIONS)
        return -1;
    r = __real_hf_region_map(fd, h, HF_SIDE_ENGINE, ret_region);
    if (r < 0)
        return r;
    stress_regions[i].inode = inode;
    stress_regions[i].map = *ret_region;
    stress_regions[i].maps = 1;
    stress_regions[i].base = hf_word_load(ret_region, HF_WORD_SUBMITTED);
    atomic_store(&stress_regions[i].used, 1);
    return 0;
}

int __wrap_hf_region_map(int fd, const struct hf_header *h, enum hf_side side, struct hf_region *ret_region)
{
    struct stress_region *known;
    struct stat st;
    int r = 0;

    if (stress_private_map)
        return __real_hf_region_map(fd, h, side, ret_region);
    if (fstat(fd, &st) < 0)
        return -1;
    pthread_mutex_lock(&lock);
    known = region_of(st.st_ino);
    if (!known) {
        r = map_first(fd, h, st.st_ino, ret_region);
    } else if (stress_options.maps == 2) {
        r = __real_hf_region_map(fd, h, side, ret_region);
    } else {
        *ret_region = known->map;
        known->maps++;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

/* A region stays mapped, for the monitor, and so that whoever still writes after the end meets the checks and not SIGSEGV. */
void stress_map_drop(const struct hf_region *r)
{
    struct stress_region *known = stress_region_at(r->base);

    if (!known)
        return;
    pthread_mutex_lock(&lock);
    known->maps--;
    pthread_mutex_unlock(&lock);
}

void __wrap_hf_region_unmap(struct hf_region *r)
{
    if (stress_private_map) {
        __real_hf_region_unmap(r);
        return;
    }
    if (!r->base)
        return;
    if (stress_self())
        atomic_store(&stress_self()->unmapped, 1);
    stress_map_drop(r);
    r->base = NULL;
}

/* ---- patterns ---- */

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * UINT64_C(0x9E3779B97F4A7C15) + b * UINT64_C(0xD1B54A32D192ED03) + c;

    x = (x ^ x >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
    return x ^ x >> 32;
}

int64_t stress_id(uint64_t session, uint32_t t, uint32_t i)
{
    return (int64_t)(mix(session, t, i) % VOCAB);
}

unsigned char stress_byte(uint32_t slot, uint32_t generation, int64_t position)
{
    return (unsigned char)mix(slot, generation, (uint64_t)position);
}

int32_t stress_token(uint32_t slot, uint32_t generation, int64_t position)
{
    return (int32_t)(mix(slot + 7, generation, (uint64_t)position) % VOCAB);
}

/* ---- verdict and release ---- */

bool __wrap_hf_decide(const struct hf_region *r, uint32_t t, enum hf_verdict v)
{
    bool won = __real_hf_decide(r, t, v);
    struct stress_region *known = stress_region_at(r->base);

    if (won)
        atomic_fetch_add_explicit(&stress_counts.decided[v], 1, memory_order_relaxed);
    if (won && known) {
        uint64_t before = atomic_exchange_explicit(&known->winner[t % WINNERS], (uint64_t)t << 32 | v, memory_order_relaxed);

        if (before >> 32 == t && (uint32_t)before != 0)
            stress_violation("two verdicts of round %u: %u, then %u", t, (uint32_t)before, (unsigned)v);
    }
    return won;
}

void __wrap_hf_release(const struct hf_region *r, uint32_t t)
{
    uint32_t released = atomic_load_explicit(&r->shared->released.value, memory_order_relaxed);
    uint32_t gathered = atomic_load_explicit(&r->engine->gathered.value, memory_order_relaxed);

    if (hf_past(gathered, t) < 0)
        stress_violation("round %u is released, and %u is the last one gathered", t, gathered);
    for (uint32_t u = released + 1; hf_past(t, u) >= 0; u++)
        if (atomic_load_explicit(hf_verdict_of(r, u), memory_order_relaxed) == hf_verdict_pack(u, HF_OPEN))
            stress_violation("round %u is released up to %u, and it is not decided", u, t);
    __real_hf_release(r, t);
    if (hf_past(atomic_load_explicit(&r->shared->released.value, memory_order_relaxed), t) < 0)
        stress_violation("released went back behind %u", t);
}
