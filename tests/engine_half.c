/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One session that lives for more than half the counter of rounds. Its words are moved on in strides, each as if all rounds of it had
 * been made and were finished; between two strides real rounds are made. Prints how many were made, and how many of those were not
 * known, or known before their time, or not booked.
 */
#include "session.h"
#include "softstream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS 8
#define STRIDE 0x1fffff00u
#define STRIDES 20 /* past the whole counter, more than twice */
#define ROUNDS 24

static const struct hf_geometry geometry = {
    .slots = SLOTS, .max_requests = 1, .state_slots = 1, .row_bytes = 1024, .window = 16, .drafts = 3, .vocab = 1000, .ring_bytes = 65536,
};
static const struct hfe_config config = {
    .session = 1, .deadline_ns = 60000000000ull, .tick_ns = 5000000, .starved_ns = 60000000000ull, .socket = -1, .loss_fd = -1,
};
static struct hfe_session *session;
static struct hfs_stream *stream;
static uint32_t made, unknown, early, unbooked;

/* A bounded number of rounds is made at a time, and hfe_settle comes behind each: so it does here. */
static void stride(void)
{
    struct hf_region *r = &session->region;
    uint32_t at = atomic_load(&session->attempted) + STRIDE;

    for (uint32_t i = 0; i < SLOTS; i++)
        atomic_store(hf_verdict_of(r, at - i), hf_verdict_pack(at - i, HF_OK));
    atomic_store(&r->engine->submitted.value, at);
    atomic_store(&r->engine->gathered.value, at);
    hf_release(r, at);
    atomic_store(&r->daemon->retired.value, at);
    session->settled = at;
    session->ring.oldest = session->ring.next = at + 1;
    session->watchdog.released = at;
    atomic_store(&session->attempted, at);
    atomic_store(&r->engine->consumed.value, at);
}

static void round_trip(void)
{
    static int64_t last_sampled, drafts_out[3];
    static int32_t num_sampled = 1, num_rejected, next_prefill;
    struct hf_region *r = &session->region;
    struct hfe_request request = {.generation = 1, .flags = HFE_DRAFT};
    struct hfe_batch batch = {
        .n_requests = 1, .requests = &request, .num_sampled = &num_sampled, .num_rejected = &num_rejected, .last_sampled = &last_sampled,
        .next_prefill = &next_prefill, .drafts_out = drafts_out,
    };
    struct hfe_ticket ticket;
    int x = hfe_submit(session, &batch, &ticket);

    if (x < 0 || !ticket.drafting)
        return;
    made++;
    early += hfe_consumed(session, ticket.round) || hfe_verdict(session, ticket.round) != HF_OPEN;
    early += hfe_verdict(session, ticket.round + 1) != -ESTALE;
    while (hf_past(hf_word_load(r, HF_WORD_GATHERED), ticket.round) < 0)
        hf_sleep_ns(1000);
    hf_decide(r, ticket.round, HF_OK);
    hf_release(r, ticket.round);
    atomic_store(&r->daemon->retired.value, ticket.round);
    if (hfs_wait(stream, hfs_marker(stream), 10000000000ull) < 0)
        exit(1);
    unknown += !hfe_consumed(session, ticket.round) || hfe_verdict(session, ticket.round) != HF_OK;
    unbooked += hfe_settle(session) != 1;
}

int main(void)
{
    const char *reason = "no region or stream";
    struct hfe_region *region;
    int fd = hf_region_create(&geometry);

    if (fd < 0 || hfs_open(&stream) < 0 || hfe_region_open(fd, hfs_ops(stream), 0, &region, &reason) < 0)
        goto fail;
    atomic_store(&region->map.daemon->phase.value, HF_PHASE_RUNNING);
    if (hfe_open(region, &config, &session, &reason) < 0)
        goto fail;
    for (int i = 0; i < STRIDES; i++) {
        for (int k = 0; k < ROUNDS; k++)
            round_trip();
        /* The watchdog rests: nothing is in flight, and words that move by a stride are nothing to it. */
        while (atomic_load(&session->watchdog.at_rest) != 1)
            hf_sleep_ns(1000000);
        stride();
    }
    printf("{\"made\": %u, \"unknown\": %u, \"early\": %u, \"unbooked\": %u, \"lost\": %u}\n", made, unknown, early, unbooked, hfe_lost(session));
    fflush(stdout);
    _exit(0);
fail:
    fprintf(stderr, "%s\n", reason);
    return 1;
}
