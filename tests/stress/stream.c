/* SPDX-License-Identifier: Apache-2.0 */
/* The soft stream with the oracle in it: a slot that is filled is free, and the reply that is taken is the round's own. */
#include "stress.h"

#define TAKEN 4096 /* more than the stream takes operations */

struct taken {
    const int64_t *ids;
    const unsigned char *from;
    uint64_t n;
};

static struct hfe_stream real;
static struct taken taken[TAKEN];
static uint64_t newest;

static struct stress_region *region_around(const void *place)
{
    const unsigned char *p = place;

    for (int i = 0; i < REGIONS; i++)
        if (atomic_load_explicit(&stress_regions[i].used, memory_order_acquire) && p >= stress_regions[i].map.base &&
            p < stress_regions[i].map.base + stress_regions[i].map.layout.bytes)
            return &stress_regions[i];
    return NULL;
}

/* In the stream's thread, between the copy of the reply and consumed := t. */
static void look_at_reply(void *argument)
{
    const struct taken *reply = argument;
    const struct hf_region *r = &region_around(reply->from)->map;
    uint32_t t = atomic_load_explicit(&r->engine->gathered.value, memory_order_relaxed);
    uint64_t verdict = atomic_load_explicit(hf_verdict_of(r, t), memory_order_relaxed);
    uint64_t session = hf_round_of(r, t)->session;

    if (reply->from != hf_reply_of(r, t) + r->layout.reply_ids)
        stress_violation("the stream takes a reply that is not round %u's", t);
    if (verdict >> 32 != t || (uint32_t)verdict == HF_OPEN)
        stress_violation("round %u is taken, and its verdict word holds round %u, verdict %u", t, (uint32_t)(verdict >> 32), (uint32_t)verdict);
    if (hf_past(atomic_load_explicit(&r->shared->released.value, memory_order_relaxed), t) < 0)
        stress_violation("round %u is taken, and it is not released", t);
    for (uint32_t i = 0; i < reply->n; i++) {
        if (reply->ids[i] < 0 || reply->ids[i] >= VOCAB)
            stress_violation("id %u of round %u is none: %ld", i, t, (long)reply->ids[i]);
        if ((uint32_t)verdict == HF_OK && reply->ids[i] != stress_id(session, t, i))
            stress_violation("under OK id %u of round %u is %ld, not its own", i, t, (long)reply->ids[i]);
    }
    atomic_fetch_add_explicit(&stress_counts.ok, (uint32_t)verdict == HF_OK, memory_order_relaxed);
}

static int copy2d(void *context, void *to, uint64_t to_pitch, const void *from, uint64_t from_pitch, uint64_t width, uint64_t height,
                  enum hfe_copy kind)
{
    struct taken *reply = &taken[newest % TAKEN];
    int r = real.copy2d(context, to, to_pitch, from, from_pitch, width, height, kind);

    if (r < 0 || kind != HFE_COPY_TO_DEVICE)
        return r;
    newest++;
    *reply = (struct taken){.ids = to, .from = from, .n = width / sizeof(int64_t)};
    return hfs_call(context, look_at_reply, reply);
}

/* The rows of t are about to be gathered: whoever had the slot before is done with it. */
static void look_at_slot(_Atomic uint32_t *word, uint32_t t)
{
    const struct hf_region *r = &region_around(word)->map;
    uint32_t before = t - r->geometry.slots;

    if (word != &r->engine->gathered.value)
        return;
    if (hf_past(atomic_load_explicit(&r->daemon->retired.value, memory_order_relaxed), before) < 0)
        stress_violation("round %u takes the slot of a round that is not retired", t);
    if (hf_past(atomic_load_explicit(&r->engine->consumed.value, memory_order_relaxed), before) < 0)
        stress_violation("round %u takes the slot of a round that is not consumed", t);
}

static int write32(void *context, _Atomic uint32_t *word, uint32_t value)
{
    look_at_slot(word, value);
    return real.write32(context, word, value);
}

static int write_wait32(void *context, _Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *until, uint32_t reached)
{
    look_at_slot(word, value);
    return real.write_wait32(context, word, value, until, reached);
}

const struct hfe_stream *stress_stream(struct hfs_stream *s)
{
    static struct hfe_stream checked;

    real = *hfs_ops(s);
    checked = real;
    checked.copy2d = copy2d;
    checked.write32 = write32;
    checked.write_wait32 = write_wait32;
    return &checked;
}
