/* SPDX-License-Identifier: Apache-2.0 */
/* The engine thread: steps of four requests with prompts and decodes, to whatever session the keeper offers, or to none. */
#include "stress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KEPT 6 /* steps whose device memory the stream may still read */
#define STUCK_NS UINT64_C(60000000000)

struct step {
    struct hfe_request requests[REQUESTS];
    int64_t positions[REQUESTS * MOST_ROWS];
    int32_t tokens[REQUESTS * MOST_ROWS];
    unsigned char rows[REQUESTS * MOST_ROWS][ROW_BYTES];
    int32_t num_sampled[REQUESTS], num_rejected[REQUESTS], next_prefill[REQUESTS];
    int64_t last_sampled[REQUESTS], drafts_out[REQUESTS * DRAFTS];
    uint64_t marker;
    uint32_t n_requests;
    int result;
};

struct history {
    uint32_t generation[REQUESTS];
    int64_t position[REQUESTS];
};

static void add_request(struct step *s, struct history *h, uint32_t slot, bool with_rows, uint32_t *at)
{
    uint32_t i = s->n_requests++;
    bool prefill = with_rows && stress_random() % 4 == 0;
    uint32_t rows = with_rows ? 1 + stress_random() % (prefill ? MOST_ROWS : DRAFTS + 1) : 0;
    uint32_t rejected = prefill || !rows ? 0 : stress_random() % rows;

    if (prefill && stress_random() % 2 == 0) {
        h->generation[slot]++;
        h->position[slot] = 0;
    }
    s->requests[i] = (struct hfe_request){.request_slot = slot, .generation = h->generation[slot], .first_row = *at, .rows = rows,
                                          .flags = HFE_DRAFT | (prefill ? HFE_PREFILL : 0)};
    s->num_sampled[i] = 1;
    s->num_rejected[i] = (int32_t)rejected;
    for (uint32_t j = 0; j < rows; j++, (*at)++) {
        int64_t position = h->position[slot] + j;

        s->positions[*at] = position;
        s->tokens[*at] = stress_token(slot, h->generation[slot], position);
        memset(s->rows[*at], stress_byte(slot, h->generation[slot], position), ROW_BYTES);
    }
    h->position[slot] += rows - rejected;
}

static void fill(struct step *s, struct history *h)
{
    bool with_rows = stress_random() % 4 != 0; /* else its round takes nothing of the ring */
    uint32_t at = 0;

    s->n_requests = 0;
    for (uint32_t slot = 0; slot < REQUESTS; slot++)
        if (stress_random() % 5)
            add_request(s, h, slot, with_rows, &at);
    memset(s->drafts_out, 0xff, sizeof(s->drafts_out));
}

static void check(const struct step *s)
{
    if (s->result < 0) /* a failed operation: drafts_out keeps what it held where the copy of legal ids failed too */
        return;
    for (uint32_t i = 0; i < s->n_requests * DRAFTS; i++)
        if (s->drafts_out[i] < 0 || s->drafts_out[i] >= VOCAB)
            stress_violation("a step ends with an id that is none: %ld", (long)s->drafts_out[i]);
}

/* As the shim does: the books of the session before are closed before the first round of the next one. */
static struct hfe_session *take(struct stress_engine *w, struct hfe_session **unsettled)
{
    struct hfe_session *offered = atomic_load(&w->offered), *taken = atomic_load(&w->taken);

    if (offered == taken)
        return taken;
    if (taken)
        *unsettled = taken;
    if (offered && *unsettled) {
        hfe_settle(*unsettled);
        *unsettled = NULL;
    }
    atomic_store(&w->taken, offered);
    return offered;
}

/* Round 0 exists only where the counter wraps. Counted here, where none can go by unseen. */
static bool has_zero(const struct hfe_ticket *t)
{
    uint32_t n = t->context_rounds + t->drafting;

    return n && t->first_round + (n - 1) < n;
}

static void submit(struct stress_engine *w, struct hfe_session *e, struct step *s)
{
    struct hfe_source source = {.from = s->rows, .pitch = ROW_BYTES, .width = ROW_BYTES};
    struct hfe_ticket ticket = {0};
    struct hfe_batch b = {
        .n_requests = s->n_requests, .n_sources = 1, .requests = s->requests, .sources = &source, .positions = s->positions,
        .tokens = s->tokens, .num_sampled = s->num_sampled, .num_rejected = s->num_rejected, .last_sampled = s->last_sampled,
        .next_prefill = s->next_prefill, .drafts_out = s->drafts_out,
        .empty = s->n_requests == 0,
    };

    if (!e)
        s->result = hfe_spare_submit(w->spare, &b, &ticket);
    else if (atomic_load(&w->sync))
        s->result = hfe_submit_sync(e, &b, &ticket);
    else
        s->result = hfe_submit(e, &b, &ticket);
    if (s->result == -EINVAL)
        stress_violation("a batch is refused: %d", s->result);
    atomic_fetch_add_explicit(&stress_counts.failed, e && s->result < 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&stress_counts.rounds, ticket.context_rounds + ticket.drafting, memory_order_relaxed);
    atomic_fetch_add_explicit(&stress_counts.context_only, ticket.context_rounds, memory_order_relaxed);
    atomic_fetch_add_explicit(&stress_counts.wraps, has_zero(&ticket), memory_order_relaxed);
    s->marker = hfs_marker(w->stream);
    if (!ticket.drafting) /* a target-only step takes its time too */
        hf_sleep_ns(20000);
}

void *stress_engine_thread(void *engine)
{
    struct stress_engine *w = engine;
    struct step *steps = calloc(KEPT, sizeof(*steps));
    struct history history = {0};
    struct hfe_session *unsettled = NULL;

    for (uint64_t n = 0; !atomic_load(&w->over); n++) {
        struct step *s = &steps[n % KEPT];
        struct hfe_session *e;
        bool failing;

        if (n >= KEPT) {
            if (hfs_wait(w->stream, s->marker, STUCK_NS) < 0)
                stress_violation("the stream does not get past a step");
            check(s);
        }
        fill(s, &history);
        e = take(w, &unsettled);
        failing = e && atomic_exchange(&w->fail, 0);
        if (failing) {
            atomic_store(&stress_region_at(e->region.base)->failing, 1);
            hfs_fail_nth(w->stream, 1 + stress_random() % 16, EIO, false);
        }
        submit(w, e, s);
        if (failing)
            hfs_fail_nth(w->stream, 0, 0, false);
        if (stress_random() % 16 == 0)
            (void)hfs_work(w->stream, stress_random() % 100000);
    }
    if (unsettled)
        hfe_settle(unsettled);
    if (hfs_wait(w->stream, hfs_marker(w->stream), STUCK_NS) < 0)
        stress_violation("the stream does not end");
    free(steps);
    return NULL;
}
