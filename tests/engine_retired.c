/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon retires a round in the middle of a submit: right behind the submit's look at retired (it asks for the time there, and
 * hf_now_ns is ours). Among rounds with rows there are some without: their slots' pieces of the ring are nothing.
 * Prints how often a round's piece of the ring was another's, how often a slot's piece was taken before it was freed, and how many rounds there were.
 */
#include "session.h"
#include "softstream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLOTS 4
#define ROW_BYTES 1024
#define STEPS 4000

static const struct hf_geometry geometry = {
    .slots = SLOTS, .max_requests = 1, .state_slots = 1, .row_bytes = ROW_BYTES, .window = 16, .drafts = 3, .vocab = 1000, .ring_bytes = 65536,
};
static struct hfe_session *session;
static struct hfs_stream *stream;
static _Thread_local bool armed; /* this thread is in a submit */
static uint32_t retire_at;       /* what the daemon retires in the middle of it */

uint64_t __real_hf_now_ns(void);
uint64_t __wrap_hf_now_ns(void);
uint64_t __wrap_hf_now_ns(void)
{
    if (armed) {
        armed = false;
        atomic_store(&session->region.daemon->retired.value, retire_at);
    }
    return __real_hf_now_ns();
}

/* What a step is: rows or none, drafts or none; everything stays where it is, since it is the same each time. */
static uint32_t submit(bool with_row, bool drafting)
{
    static unsigned char row[ROW_BYTES];
    static int64_t position, last_sampled, drafts_out[3];
    static int32_t token, num_sampled, num_rejected, next_prefill;
    struct hfe_request request = {.generation = 1, .rows = with_row, .flags = drafting ? HFE_DRAFT : 0};
    struct hfe_source source = {.from = row, .pitch = ROW_BYTES, .width = ROW_BYTES};
    struct hfe_batch batch = {
        .n_requests = 1, .n_sources = 1, .requests = &request, .sources = &source, .positions = &position, .tokens = &token,
        .num_sampled = &num_sampled, .num_rejected = &num_rejected, .last_sampled = &last_sampled, .next_prefill = &next_prefill,
        .drafts_out = drafting ? drafts_out : NULL,
    };
    uint32_t before = atomic_load(&session->attempted);
    struct hfe_ticket ticket;
    int r = hfe_submit(session, &batch, &ticket);

    if (r < 0) {
        fprintf(stderr, "submit: %s\n", strerror(-r));
        exit(1);
    }
    return atomic_load(&session->attempted) - before;
}

/* Gathered, decided, released, past the stream; not retired. */
static void finish(uint32_t t)
{
    while (hf_past(hf_word_load(&session->region, HF_WORD_GATHERED), t) < 0)
        hf_sleep_ns(1000);
    hf_decide(&session->region, t, HF_OK);
    hf_release(&session->region, t);
    if (hfs_wait(stream, hfs_marker(stream), UINT64_C(2000000000)) < 0)
        exit(1);
}

static bool overlaps(uint32_t a, uint32_t b)
{
    const struct hfe_ring *ring = &session->ring;
    uint64_t a_at = ring->piece[a & (SLOTS - 1)].offset, a_bytes = ring->piece[a & (SLOTS - 1)].bytes;
    uint64_t b_at = ring->piece[b & (SLOTS - 1)].offset, b_bytes = ring->piece[b & (SLOTS - 1)].bytes;

    return a_bytes && b_bytes && a_at < b_at + b_bytes && b_at < a_at + a_bytes;
}

int main(void)
{
    struct hfe_config config = {.session = 1, .deadline_ns = UINT64_C(60000000000), .tick_ns = 5000000, .starved_ns = UINT64_C(60000000000),
                                .socket = -1, .loss_fd = -1};
    uint32_t retired = 0, newest = 0;
    int shared = 0, early = 0, fd = hf_region_create(&geometry);
    struct hfe_region *region;
    const char *reason;

    if (fd < 0 || hfs_open(&stream) < 0 || hfe_region_open(fd, hfs_ops(stream), 0, &region, &reason) < 0 ||
        (atomic_store(&region->map.daemon->phase.value, HF_PHASE_RUNNING), hfe_open(region, &config, &session, &reason)) < 0)
        return 1;
    srand(1);
    for (int i = 0; i < STEPS; i++) {
        bool full = newest - retired == SLOTS;

        /* The slot of the next round is freed during the submit, or before it. */
        retire_at = retired += full || (rand() % 2 && retired != newest);
        armed = rand() % 4 != 0;
        if (!armed)
            atomic_store(&session->region.daemon->retired.value, retired);
        if (submit(rand() % 2, rand() % 2) == 1)
            finish(++newest);
        armed = false;
        atomic_store(&session->region.daemon->retired.value, retired);
        early += session->ring.next - session->ring.oldest > SLOTS;
        for (uint32_t t = retired + 1; t < newest; t++)
            shared += overlaps(t, newest);
    }
    printf("{\"shared\": %d, \"early\": %d, \"in_use\": %u, \"rounds\": %u}\n", shared, early, session->ring.in_use, newest);
    fflush(stdout);
    _exit(0);
}
