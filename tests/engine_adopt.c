/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One region, one session after the other, while the engine thread goes on submitting: what a keeper does at a loss, next to
 * an engine thread that may be anywhere in a submit. In one process and one map, for a thread sanitizer.
 * Usage: engine_adopt SESSIONS SYNC
 */
#include "session.h"
#include "softstream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define DRAFTS 3
#define ROW_BYTES 64
#define STEPS 8 /* as many as there are slots: device memory of a step is filled again once the stream is past it */

static const struct hf_geometry geometry = {
    .slots = STEPS, .max_requests = 1, .state_slots = 1, .row_bytes = ROW_BYTES, .window = 16, .drafts = DRAFTS, .vocab = 1000, .ring_bytes = 65536,
};

struct world {
    struct hfs_stream *stream;
    struct hfe_spare *spare;
    const struct hf_region *region;
    _Atomic(struct hfe_session *) offered; /* the keeper's */
    _Atomic(struct hfe_session *) taken;   /* the engine thread's */
    uint32_t base;
    int sync;
    _Atomic int daemon_over, engine_over;
    _Atomic uint64_t ok, target_only, faults;
};

struct step {
    struct hfe_request request;
    unsigned char row[ROW_BYTES];
    int64_t position, last_sampled, drafts_out[DRAFTS];
    int32_t token, num_sampled, num_rejected, next_prefill;
    uint64_t marker;
    uint32_t round, drafting;
    struct hfe_session *session;
};

static void fault(struct world *w, const char *what, uint32_t t)
{
    if (atomic_fetch_add(&w->faults, 1) < 5)
        fprintf(stderr, "FAULT %s, round %u\n", what, t);
}

static void *daemon_thread(void *argument)
{
    struct world *w = argument;
    const struct hf_region *r = w->region;

    for (uint32_t t = w->base + 1; !atomic_load(&w->daemon_over);) {
        _Atomic int64_t *ids = (_Atomic int64_t *)(hf_reply_of(r, t) + r->layout.reply_ids);

        atomic_fetch_add(&r->daemon->beat.value, 1);
        if (hf_past(hf_word_load(r, HF_WORD_SUBMITTED), t) < 0 || hf_past(hf_word_load(r, HF_WORD_GATHERED), t) < 0) {
            hf_sleep_ns(2000);
            continue;
        }
        if (hf_round_of(r, t)->round != t)
            fault(w, "another round's header", t);
        for (uint32_t i = 0; i < DRAFTS; i++)
            atomic_store_explicit(&ids[i], (t + i) % geometry.vocab, memory_order_relaxed);
        hf_decide(r, t, HF_OK);
        hf_release(r, t);
        atomic_store_explicit(&r->daemon->retired.value, t, memory_order_release);
        t++;
    }
    return NULL;
}

static void check(struct world *w, const struct step *s)
{
    for (uint32_t i = 0; i < DRAFTS; i++)
        if (s->drafts_out[i] < 0 || s->drafts_out[i] >= geometry.vocab)
            fault(w, "an illegal id", s->round);
    if (!s->drafting || s->session != atomic_load(&w->taken) || hfe_verdict(s->session, s->round) != HF_OK)
        return;
    for (uint32_t i = 0; i < DRAFTS; i++)
        if (s->drafts_out[i] != (s->round + i) % geometry.vocab)
            fault(w, "another round's draft under OK", s->round);
    atomic_fetch_add(&w->ok, 1);
}

/* The books of the session before are closed here, before the first round of the next one. */
static struct hfe_session *take(struct world *w, struct hfe_session **unsettled)
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

static void *engine_thread(void *argument)
{
    struct world *w = argument;
    struct step *steps = calloc(STEPS, sizeof(*steps));
    struct hfe_session *unsettled = NULL;

    for (uint64_t n = 0; !atomic_load(&w->engine_over); n++) {
        struct step *s = &steps[n % STEPS];
        struct hfe_source source = {.from = s->row, .pitch = ROW_BYTES, .width = ROW_BYTES};
        struct hfe_ticket ticket = {0};
        struct hfe_batch b = {
            .n_requests = 1, .n_sources = 1, .requests = &s->request, .sources = &source, .positions = &s->position, .tokens = &s->token,
            .num_sampled = &s->num_sampled, .num_rejected = &s->num_rejected, .last_sampled = &s->last_sampled,
            .next_prefill = &s->next_prefill, .drafts_out = s->drafts_out,
        };

        if (hfs_wait(w->stream, s->marker, UINT64_C(20000000000)) < 0)
            fault(w, "the stream is stuck", s->round);
        if (s->marker)
            check(w, s);
        s->request = (struct hfe_request){.generation = 1, .rows = 1, .flags = HFE_DRAFT};
        s->position = (int64_t)n;
        for (uint32_t i = 0; i < DRAFTS; i++)
            s->drafts_out[i] = -1;
        s->session = take(w, &unsettled);
        if (!s->session)
            hfe_spare_submit(w->spare, &b, &ticket);
        else if (w->sync)
            hfe_submit_sync(s->session, &b, &ticket);
        else
            hfe_submit(s->session, &b, &ticket);
        s->round = ticket.round;
        s->drafting = ticket.drafting;
        atomic_fetch_add(&w->target_only, !ticket.drafting);
        s->marker = hfs_marker(w->stream);
    }
    hfs_wait(w->stream, hfs_marker(w->stream), UINT64_C(20000000000));
    free(steps);
    return NULL;
}

/* A session from its begin to the loss and to the end of its watchdog; it is not freed yet. */
static struct hfe_session *live(struct world *w, struct hfe_region *region, struct hfe_session *before, uint64_t ns)
{
    struct hfe_config config = {.deadline_ns = 2000000000, .tick_ns = 500000, .starved_ns = 500000000, .stream_limit_ns = 20000000000};
    struct hfe_session *e = NULL;
    const char *reason;
    uint64_t told;
    pthread_t daemon;
    int ends[2];

    while (hfe_region_rest(region, &w->base) < 0)
        hf_sleep_ns(100000);
    hfe_region_mark(region, 0);
    config.loss_fd = eventfd(0, EFD_CLOEXEC);
    if (config.loss_fd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        exit(2);
    config.socket = ends[0];
    atomic_store(&w->region->daemon->retired.value, w->base);
    atomic_store(&w->region->daemon->phase.value, HF_PHASE_RUNNING);
    atomic_store(&w->daemon_over, 0);
    pthread_create(&daemon, NULL, daemon_thread, w);
    if (hfe_open(region, &config, &e, &reason) < 0)
        exit(2);
    atomic_store(&w->offered, e);
    while (before && atomic_load(&w->taken) == before)
        hf_sleep_ns(100000);
    if (before) {
        while (atomic_load(&w->taken) != e)
            hf_sleep_ns(100000);
        hfe_free(before);
    }
    hf_sleep_ns(ns);
    atomic_store(&w->daemon_over, 1);
    pthread_join(daemon, NULL);
    close(ends[1]);
    if (read(config.loss_fd, &told, sizeof(told)) != sizeof(told))
        fault(w, "no word of the loss", w->base);
    atomic_store(&w->offered, NULL);
    while (!hfe_ended(e))
        hf_sleep_ns(100000);
    if (hfe_end(e, 0) < 0)
        fault(w, "an ended session does not end", w->base);
    close(ends[0]);
    close(config.loss_fd);
    return e;
}

int main(int argc, char **argv)
{
    uint64_t sessions = argc > 1 ? strtoull(argv[1], NULL, 10) : 20, booked = 0;
    struct world w = {.sync = argc > 2 && atoi(argv[2])};
    struct hfe_session *last = NULL;
    struct hfe_region *region;
    struct hfe_status status;
    const char *reason;
    pthread_t engine;
    int fd = hf_region_create(&geometry);

    if (fd < 0 || hfs_open(&w.stream) < 0 || hfe_spare_open(hfs_ops(w.stream), &geometry, &w.spare) < 0 ||
        hfe_region_open(fd, hfs_ops(w.stream), 0, &region, &reason) < 0)
        return 2;
    close(fd);
    w.region = &region->map;
    pthread_create(&engine, NULL, engine_thread, &w);
    for (uint64_t i = 0; i < sessions; i++)
        last = live(&w, region, last, 500000 + i * 7919 % 5000000);
    atomic_store(&w.engine_over, 1);
    pthread_join(engine, NULL);
    hfe_settle(last);
    hfe_region_status_of(region, &status);
    for (int i = 0; i < HF_VERDICT_MAX; i++)
        booked += status.rounds[i];
    if (booked != status.submitted)
        fault(&w, "a round that is not in the books, or twice", status.submitted);
    hfe_free(last);
    hfe_spare_close(w.spare);
    if (hfs_kept(w.stream) != 1 || hfe_region_close(region) < 0 || hfs_close(w.stream, UINT64_C(20000000000)) < 0)
        fault(&w, "the end", 0);
    printf("{\"ok\": %lu, \"lost\": %lu, \"target_only\": %lu, \"faults\": %lu}\n", (unsigned long)w.ok,
           (unsigned long)status.rounds[HF_LOST], (unsigned long)w.target_only, (unsigned long)w.faults);
    return w.faults != 0;
}
