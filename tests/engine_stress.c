/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine session under load in one process and one map, so that a thread sanitizer sees every access: engine thread,
 * soft stream, watchdog, and a daemon thread that is sometimes late, sometimes wrong, sometimes silent. The daemon checks
 * every row, the engine thread every reply. Ends by a hang-up or a clean close. Usage: engine_stress ROUNDS SEED
 */
#include "session.h"
#include "softstream.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUESTS 4
#define DRAFTS 3
#define ROW_BYTES 64
#define MOST_ROWS 24

static struct hf_geometry geometry = {
    .slots = 4, .max_requests = REQUESTS, .state_slots = REQUESTS, .row_bytes = ROW_BYTES, .window = 16, .drafts = DRAFTS, .vocab = 1000,
    .ring_bytes = 65536,
};

struct world {
    struct hfe_session *session;
    const struct hf_region *region;
    uint32_t base;
    _Atomic int stop;
    _Atomic uint64_t rounds, rows, faults;
};

/* A step's device memory: one for each slot and a few more, so that none is filled while the stream reads it. */
struct step {
    struct hfe_request requests[REQUESTS];
    int64_t positions[REQUESTS * MOST_ROWS];
    int32_t tokens[REQUESTS * MOST_ROWS];
    unsigned char rows[REQUESTS * MOST_ROWS][ROW_BYTES];
    int32_t num_sampled[REQUESTS], num_rejected[REQUESTS], next_prefill[REQUESTS];
    int64_t last_sampled[REQUESTS], drafts_out[REQUESTS * DRAFTS];
    uint64_t marker;
    uint32_t round, drafting, n_requests;
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void fault(struct world *w, const char *what, uint32_t t)
{
    if (atomic_fetch_add(&w->faults, 1) < 5)
        fprintf(stderr, "FAULT %s, round %u\n", what, t);
}

static unsigned char byte_of(uint32_t slot, uint32_t generation, int64_t position)
{
    return (unsigned char)(slot * 31 + generation * 7 + (uint32_t)position);
}

/* ---- the daemon ---- */

static void check_rows(struct world *w, uint32_t t)
{
    const struct hf_round *round = hf_round_of(w->region, t);
    const struct hf_request *requests = hf_requests_of(hf_round_of(w->region, t));
    const unsigned char *ring = w->region->base + w->region->layout.rows + round->ring_offset;
    struct hf_ring_span span;

    hf_ring_span_of(&geometry, round->n_rows, &span);
    if (round->round != t)
        fault(w, "another round's header", t);
    for (uint32_t i = 0; i < round->n_requests; i++)
        for (uint32_t j = 0; j < requests[i].rows; j++) {
            uint32_t at = requests[i].first_row + j;
            int64_t position = ((const int64_t *)(ring + span.positions))[at];
            unsigned char want = byte_of(requests[i].request_slot, requests[i].generation, position);

            for (uint32_t k = 0; k < ROW_BYTES; k++)
                if (ring[span.rows + (uint64_t)at * ROW_BYTES + k] != want) {
                    fault(w, "a row is not what was meant", t);
                    break;
                }
            atomic_fetch_add(&w->rows, 1);
        }
}

static void write_reply(struct world *w, uint32_t t)
{
    _Atomic int64_t *ids = (_Atomic int64_t *)(hf_reply_of(w->region, t) + w->region->layout.reply_ids);

    for (uint32_t i = 0; i < hf_round_of(w->region, t)->n_requests * DRAFTS; i++)
        atomic_store_explicit(&ids[i], (t + i) % geometry.vocab, memory_order_relaxed);
}

static void *daemon_thread(void *argument)
{
    struct world *w = argument;
    uint64_t random = 88172645463325252U;
    uint32_t t = w->base + 1;

    while (!atomic_load(&w->stop)) {
        atomic_fetch_add(&w->region->daemon->beat.value, 1);
        if (hf_past(hf_word_load(w->region, HF_WORD_SUBMITTED), t) < 0) {
            hf_doorbell_wait(w->region, t - 1, 1000000);
            continue;
        }
        if (hf_past(hf_word_load(w->region, HF_WORD_GATHERED), t) < 0) {
            hf_sleep_ns(1000);
            continue;
        }
        check_rows(w, t);
        if (next_random(&random) % 40 == 0)
            hf_sleep_ns(3000000); /* past the deadline */
        if (next_random(&random) % 10 == 0) {
            hf_decide(w->region, t, HF_TIMEOUT);
        } else {
            write_reply(w, t);
            hf_decide(w->region, t, HF_OK);
        }
        hf_release(w->region, t);
        check_rows(w, t); /* until it is retired */
        atomic_store_explicit(&w->region->daemon->retired.value, t, memory_order_release);
        atomic_fetch_add(&w->rounds, 1);
        t++;
    }
    return NULL;
}

/* ---- the engine ---- */

static void fill(struct step *s, uint64_t *random, uint32_t *generation, int64_t *position)
{
    uint32_t at = 0;

    s->n_requests = 0;
    for (uint32_t slot = 0; slot < REQUESTS; slot++) {
        bool prefill = next_random(random) % 4 == 0;
        uint32_t rows = 1 + next_random(random) % (prefill ? MOST_ROWS : DRAFTS + 1);

        if (next_random(random) % 5 == 0)
            continue;
        if (prefill && next_random(random) % 2 == 0) {
            generation[slot]++;
            position[slot] = 0;
        }
        s->requests[s->n_requests] = (struct hfe_request){
            .request_slot = slot, .generation = generation[slot], .first_row = at, .rows = rows,
            .flags = HFE_DRAFT | (prefill ? HFE_PREFILL : 0)};
        s->num_sampled[s->n_requests] = 1;
        s->num_rejected[s->n_requests] = 0;
        for (uint32_t j = 0; j < rows; j++, at++) {
            s->positions[at] = position[slot];
            memset(s->rows[at], byte_of(slot, generation[slot], position[slot]), ROW_BYTES);
            position[slot]++;
        }
        s->n_requests++;
    }
}

static void check_step(struct world *w, const struct step *s)
{
    for (uint32_t i = 0; i < s->n_requests * DRAFTS; i++)
        if (s->drafts_out[i] < 0 || s->drafts_out[i] >= geometry.vocab)
            fault(w, "an illegal id", s->round);
    if (!s->drafting || hfe_verdict(w->session, s->round) != HF_OK)
        return;
    for (uint32_t i = 0; i < s->n_requests * DRAFTS; i++)
        if (s->drafts_out[i] != (int64_t)((s->round + i) % geometry.vocab))
            fault(w, "a draft under OK that is not its own", s->round);
}

static void run(struct world *w, struct hfs_stream *stream, uint64_t n, uint64_t seed, int hang_up_fd)
{
    enum { KEPT = 6 };
    struct step *steps = calloc(KEPT, sizeof(*steps));
    uint32_t generation[REQUESTS] = {0};
    int64_t position[REQUESTS] = {0};
    uint64_t random = seed * 2654435761U + 1;
    int open_end = hang_up_fd;

    for (uint64_t i = 0; i < n; i++) {
        struct step *s = &steps[i % KEPT];
        struct hfe_source source = {.from = s->rows, .pitch = ROW_BYTES, .width = ROW_BYTES};
        struct hfe_ticket ticket;

        if (i >= KEPT) {
            if (hfs_wait(stream, s->marker, UINT64_C(20000000000)) < 0) {
                fault(w, "the stream is stuck", s->round);
                break;
            }
            check_step(w, s);
        }
        fill(s, &random, generation, position);
        memset(s->drafts_out, 0xff, sizeof(s->drafts_out));
        hfe_submit(w->session, &(struct hfe_batch){
            .n_requests = s->n_requests, .n_sources = 1, .requests = s->requests, .sources = &source, .positions = s->positions,
            .tokens = s->tokens, .num_sampled = s->num_sampled, .num_rejected = s->num_rejected, .last_sampled = s->last_sampled,
            .next_prefill = s->next_prefill, .drafts_out = s->drafts_out}, &ticket);
        s->round = ticket.round;
        s->drafting = ticket.drafting;
        s->marker = hfs_marker(stream);
        if (!ticket.drafting)
            hf_sleep_ns(300000); /* a target-only step takes its time too */
        if (next_random(&random) % 3 == 0)
            hfs_work(stream, next_random(&random) % 200000);
        if (seed % 2 == 1 && i == n * 3 / 4) {
            close(open_end); /* the daemon's end of the socket: as if it had died, while it still runs */
            open_end = -1;
        }
        if (seed % 3 == 2 && i == n / 2)
            hfs_fail_nth(stream, 7, EIO, false);
    }
    hfs_wait(stream, hfs_marker(stream), UINT64_C(20000000000));
    for (uint64_t i = 0; i < KEPT && i < n; i++)
        check_step(w, &steps[i]);
    if (open_end >= 0)
        close(open_end);
    free(steps);
}

int main(int argc, char **argv)
{
    uint64_t n = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    struct hfe_config config = {.session = 1, .deadline_ns = 2000000, .tick_ns = 500000, .starved_ns = 500000000, .loss_fd = -1};
    struct world w = {0};
    struct hfe_status status;
    uint64_t booked = 0;
    struct hfs_stream *stream;
    struct hfe_region *region;
    const char *reason = NULL;
    pthread_t thread;
    int fd = hf_region_create(&geometry), ends[2];

    if (fd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0 || hfs_open(&stream) < 0)
        return 2;
    config.socket = ends[0];
    if (hfe_region_open(fd, hfs_ops(stream), 40, &region, &reason) < 0 || hfe_open(region, &config, &w.session, &reason) < 0) {
        fprintf(stderr, "%s\n", reason);
        return 2;
    }
    close(fd);
    w.region = &w.session->region;
    atomic_store(&w.region->daemon->phase.value, HF_PHASE_RUNNING);
    pthread_create(&thread, NULL, daemon_thread, &w);
    run(&w, stream, n, seed, ends[1]);
    atomic_store(&w.stop, 1);
    pthread_join(thread, NULL);
    if (hfe_end(w.session, UINT64_C(20000000000)) < 0) {
        fault(&w, "the end found the stream stuck", 0);
        return 1;
    }
    hfe_settle(w.session);
    hfe_status_of(w.session, &status);
    hfe_free(w.session);
    if (hfe_region_close(region) < 0)
        fault(&w, "a region that is still in use", 0);
    if (hfs_close(stream, UINT64_C(20000000000)) < 0)
        fault(&w, "the stream does not end", 0);
    close(ends[0]);
    for (int i = 0; i < HF_VERDICT_MAX; i++)
        booked += status.rounds[i];
    if (booked != status.submitted)
        fault(&w, "a round that is not in the books", status.submitted);
    printf("{\"rounds\": %lu, \"rows\": %lu, \"faults\": %lu, \"ok\": %lu, \"expired\": %lu, \"lost\": %u, \"deferred\": %lu}\n",
           (unsigned long)w.rounds, (unsigned long)w.rows, (unsigned long)w.faults, (unsigned long)status.rounds[HF_OK],
           (unsigned long)status.rounds[HF_EXPIRED], status.lost, (unsigned long)status.rows_deferred);
    return w.faults != 0;
}
