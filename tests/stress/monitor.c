/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that only reads: no word goes back, no verdict changes, nothing that is gathered stays unreleased. */
#include "stress.h"

#define LOOK_NS 50000

struct last {
    uint32_t submitted, gathered, consumed, released, retired;
    uint32_t stuck_at;
    uint64_t stuck_ns; /* since when stuck_at is released and more is gathered; 0: it is not */
    uint64_t verdict[HF_MAX_SLOTS];
    bool known;
};

static uint32_t look(_Atomic uint32_t *word, uint32_t *last, const char *name)
{
    /* Acquire: the words are read in the order in which they are looked at here. */
    uint32_t now = atomic_load_explicit(word, memory_order_acquire);

    if (hf_past(now, *last) < 0)
        stress_violation("%s goes back: %u, then %u", name, *last, now);
    *last = now;
    return now;
}

static void look_at_verdicts(const struct hf_region *r, struct last *last)
{
    for (uint32_t i = 0; i < r->geometry.slots; i++) {
        uint64_t before = last->verdict[i], now = atomic_load_explicit(&r->shared->verdict[i].value, memory_order_acquire);

        last->verdict[i] = now;
        if (before == now)
            continue;
        if (before >> 32 == now >> 32 && (uint32_t)before != HF_OPEN)
            stress_violation("the verdict of round %u changes: %u, then %u", (uint32_t)(now >> 32), (uint32_t)before, (uint32_t)now);
        if (hf_past((uint32_t)(now >> 32), (uint32_t)(before >> 32)) < 0)
            stress_violation("a verdict word goes back: round %u, then %u", (uint32_t)(before >> 32), (uint32_t)(now >> 32));
        if ((uint32_t)now >= HF_VERDICT_MAX)
            stress_violation("round %u ends with a verdict that is none: %u", (uint32_t)(now >> 32), (uint32_t)now);
    }
}

static void look_for_stuck(struct last *last, uint64_t now_ns)
{
    uint64_t late;

    if (last->gathered == last->released) {
        last->stuck_ns = 0;
        return;
    }
    if (last->stuck_ns == 0 || last->stuck_at != last->released) {
        last->stuck_at = last->released;
        last->stuck_ns = now_ns;
        return;
    }
    late = now_ns - last->stuck_ns;
    if (late > atomic_load_explicit(&stress_counts.most_late_ns, memory_order_relaxed))
        atomic_store_explicit(&stress_counts.most_late_ns, late, memory_order_relaxed);
    if (late > stress_options.patience_ns)
        stress_violation("round %u is gathered, and nobody releases it", last->released + 1);
}

static void look_at_words(const struct stress_region *region, struct last *last)
{
    const struct hf_region *r = &region->map;
    uint32_t retired = look(&r->daemon->retired.value, &last->retired, "retired");
    uint32_t released = look(&r->shared->released.value, &last->released, "released");
    uint32_t consumed = look(&r->engine->consumed.value, &last->consumed, "consumed");
    uint32_t gathered = look(&r->engine->gathered.value, &last->gathered, "gathered");
    (void)look(&r->engine->submitted.value, &last->submitted, "submitted");

    if (hf_past(gathered, released) < 0 || hf_past(gathered, retired) < 0 ||
        (hf_past(gathered, consumed) < 0 && !atomic_load(&region->failing)))
        stress_violation("gathered %u, and retired %u, released %u, consumed %u", gathered, retired, released, consumed);
}

static void begin(const struct stress_region *region, struct last *last)
{
    last->submitted = last->gathered = last->consumed = last->released = last->retired = region->base;
    for (uint32_t i = 0; i < region->map.geometry.slots; i++)
        last->verdict[i] = atomic_load_explicit(&region->map.shared->verdict[i].value, memory_order_acquire);
    last->known = true;
}

void *stress_monitor(void *stop)
{
    static struct last last[REGIONS];

    while (!atomic_load((_Atomic int *)stop)) {
        for (int i = 0; i < REGIONS; i++) {
            struct stress_region *region = &stress_regions[i];

            if (!atomic_load_explicit(&region->used, memory_order_acquire))
                break;
            if (!last[i].known)
                begin(region, &last[i]);
            look_at_words(region, &last[i]);
            look_at_verdicts(&region->map, &last[i]);
            look_for_stuck(&last[i], hf_now_ns());
        }
        atomic_fetch_add_explicit(&stress_counts.checks, 1, memory_order_relaxed);
        hf_sleep_ns(LOOK_NS);
    }
    return NULL;
}
