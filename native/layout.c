/* SPDX-License-Identifier: Apache-2.0 */
/* Where everything in a region lies. Computed from the geometry alone, so both sides come to the same offsets. */
#include "hostflag.h"

#include <errno.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

_Static_assert(sizeof(struct hf_word) == HF_LINE, "every hot word has a line of its own");
_Static_assert(sizeof(struct hf_verdict_word) == HF_LINE, "every verdict has a line of its own");
_Static_assert(sizeof(struct hf_timing) <= HF_LINE, "timing fits the line before the ids");
_Static_assert(sizeof(struct hf_header) <= HF_PART_ALIGN, "the header is one part");
_Static_assert((HF_MAX_SLOTS & (HF_MAX_SLOTS - 1)) == 0, "slots are powers of two");

static uint64_t align_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

void hf_ring_span_of(const struct hf_geometry *g, uint32_t n_rows, struct hf_ring_span *ret_span)
{
    ret_span->positions = 0;
    ret_span->tokens = align_up((uint64_t)n_rows * sizeof(int64_t), HF_LINE);
    ret_span->rows = ret_span->tokens + align_up((uint64_t)n_rows * sizeof(int32_t), HF_LINE);
    ret_span->bytes = ret_span->rows + align_up((uint64_t)n_rows * g->row_bytes, HF_LINE);
}

const char *hf_geometry_fault(const struct hf_geometry *g)
{
    struct hf_ring_span step;

    if (g->slots < HF_MIN_SLOTS || g->slots > HF_MAX_SLOTS || (g->slots & (g->slots - 1)) != 0)
        return "slots must be a power of two from " TEXT(HF_MIN_SLOTS) " to " TEXT(HF_MAX_SLOTS);
    if (g->max_requests < 1 || g->max_requests > HF_MAX_REQUESTS)
        return "max_requests must be from 1 to " TEXT(HF_MAX_REQUESTS);
    if (g->state_slots < g->max_requests || g->state_slots > HF_MAX_STATE_SLOTS)
        return "state_slots must be from max_requests to " TEXT(HF_MAX_STATE_SLOTS);
    if (g->row_bytes < 8 || g->row_bytes > HF_MAX_ROW_BYTES || g->row_bytes % 8 != 0)
        return "row_bytes must be a multiple of 8 from 8 to " TEXT(HF_MAX_ROW_BYTES);
    if (g->window < 1 || g->window > 1048576)
        return "window must be from 1 to 1048576 rows";
    if (g->drafts < 1 || g->drafts > HF_MAX_DRAFTS)
        return "drafts must be from 1 to " TEXT(HF_MAX_DRAFTS);
    if (g->vocab < 1 || g->vocab > INT32_MAX)
        return "vocab must be from 1 to 2147483647";
    if (g->extra_bytes > HF_MAX_ROW_BYTES)
        return "extra_bytes must be at most " TEXT(HF_MAX_ROW_BYTES);
    if (g->ring_bytes % HF_PART_ALIGN != 0 || g->ring_bytes > HF_MAX_REGION_BYTES)
        return "ring_bytes must be a multiple of " TEXT(HF_PART_ALIGN) " and at most " TEXT(HF_MAX_REGION_BYTES);
    /* Else a full decode step could never be shipped. */
    hf_ring_span_of(g, g->max_requests * (g->drafts + 1), &step);
    if (step.bytes > g->ring_bytes)
        return "ring_bytes must hold one full decode step: max_requests * (drafts + 1) rows";
    return NULL;
}

static uint64_t lay_slot(const struct hf_geometry *g, struct hf_layout *l)
{
    uint64_t at = align_up(sizeof(struct hf_round) + g->max_requests * sizeof(struct hf_request), HF_LINE);

    l->gpu_header = at;
    at += HF_LINE; /* gathered_ns */
    l->num_sampled = at;
    at += align_up(g->max_requests * sizeof(int32_t), HF_LINE);
    l->num_rejected = at;
    at += align_up(g->max_requests * sizeof(int32_t), HF_LINE);
    l->last_sampled = at;
    at += align_up(g->state_slots * sizeof(int64_t), HF_LINE);
    l->next_prefill = at;
    at += align_up(g->state_slots * sizeof(int32_t), HF_LINE);
    return at;
}

static uint64_t lay_reply(const struct hf_geometry *g, struct hf_layout *l)
{
    uint64_t at = HF_LINE; /* hf_timing */

    l->reply_ids = at;
    at += align_up((uint64_t)g->max_requests * g->drafts * sizeof(int64_t), HF_LINE);
    l->reply_extra = at;
    at += align_up((uint64_t)g->max_requests * g->extra_bytes, HF_LINE);
    return at;
}

static uint64_t next_part(uint64_t *at, uint64_t bytes)
{
    uint64_t here = *at;

    *at += align_up(bytes, HF_PART_ALIGN);
    return here;
}

int hf_layout_of(const struct hf_geometry *g, struct hf_layout *ret_layout)
{
    struct hf_layout l = {0};
    uint64_t at = 0;

    if (hf_geometry_fault(g))
        return -EINVAL;
    l.slot_stride = lay_slot(g, &l);
    l.reply_stride = lay_reply(g, &l);
    next_part(&at, sizeof(struct hf_header));
    l.engine_words = next_part(&at, sizeof(struct hf_engine_words));
    l.shared_words = next_part(&at, sizeof(struct hf_shared_words));
    l.daemon_words = next_part(&at, sizeof(struct hf_daemon_words));
    l.slots = next_part(&at, g->slots * l.slot_stride);
    l.replies = next_part(&at, g->slots * l.reply_stride);
    l.stats = next_part(&at, sizeof(struct hf_stats));
    l.rows = next_part(&at, g->ring_bytes);
    l.bytes = at;
    if (l.bytes > HF_MAX_REGION_BYTES)
        return -EINVAL;
    *ret_layout = l;
    return 0;
}

/* FNV-1a over every offset and size that the two sides must agree on. */
uint64_t hf_layout_hash(void)
{
#define AT(type, field) offsetof(struct type, field)
    const uint64_t facts[] = {
        HF_LAYOUT_VERSION, HF_LINE, HF_PART_ALIGN, HF_MAX_SLOTS, HF_RECORDS, HF_VERDICT_MAX, HF_SKIP_MAX, HF_PHASE_MAX,
        HF_ROUND_CONTEXT_ONLY, HF_REQUEST_DRAFT, HF_REQUEST_ALL_VALID,
        sizeof(struct hf_geometry), AT(hf_geometry, ring_bytes), sizeof(struct hf_layout), AT(hf_layout, reply_extra),
        sizeof(struct hf_engine_words), AT(hf_engine_words, gathered), AT(hf_engine_words, consumed),
        AT(hf_engine_words, lost), AT(hf_engine_words, parked),
        sizeof(struct hf_shared_words), AT(hf_shared_words, verdict),
        sizeof(struct hf_daemon_words), AT(hf_daemon_words, beat), AT(hf_daemon_words, phase), AT(hf_daemon_words, waiting),
        sizeof(struct hf_round), AT(hf_round, flags), AT(hf_round, session), AT(hf_round, n_requests), AT(hf_round, n_rows),
        AT(hf_round, ring_offset), AT(hf_round, ring_bytes), AT(hf_round, submitted_ns),
        sizeof(struct hf_request), AT(hf_request, generation), AT(hf_request, batch_index), AT(hf_request, first_row),
        AT(hf_request, rows), AT(hf_request, flags),
        sizeof(struct hf_timing), AT(hf_timing, seen_ns), AT(hf_timing, decided_ns),
        sizeof(struct hf_record), AT(hf_record, timing), sizeof(struct hf_stats), AT(hf_stats, record),
        sizeof(struct hf_header), AT(hf_header, geometry), AT(hf_header, layout), AT(hf_header, region_id),
    };
#undef AT
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
        for (int shift = 0; shift < 64; shift += 8) {
            hash ^= facts[i] >> shift & 0xff;
            hash *= UINT64_C(0x100000001b3);
        }
    return hash;
}
