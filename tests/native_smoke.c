/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be checked of native/ without threads, as a C program, so that it runs under sanitizers and on another architecture: the
 * layout, the words around the wrap, and the decoders on bytes that make no sense. Prints the layout hash. Usage: native_smoke SEED
 */
#include "loopstate.h"
#include "shared.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : fail(#what, __LINE__))

static const struct hf_geometry geometry = {
    .slots = 4, .max_requests = 4, .state_slots = 8, .row_bytes = 64, .window = 16, .drafts = 3, .vocab = 1000, .ring_bytes = 65536,
};

static void fail(const char *what, int line)
{
    fprintf(stderr, "line %d: not so: %s\n", line, what);
    exit(1);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static void fill(void *bytes, size_t n, uint64_t *state)
{
    for (size_t i = 0; i < n; i++)
        ((unsigned char *)bytes)[i] = (unsigned char)next_random(state);
}

/* Around the wrap a verdict is the round's own, once; released only rises. */
static void check_words(const struct hf_region *r, uint32_t base)
{
    for (uint32_t t = base + 1; t != base + 9; t++) {
        atomic_store(hf_verdict_of(r, t), hf_verdict_pack(t, HF_OPEN));
        CHECK(hf_verdict_load(r, t) == HF_OPEN);
        CHECK(hf_verdict_load(r, t + r->geometry.slots) == -ESTALE);
        CHECK(hf_decide(r, t, HF_TIMEOUT));
        CHECK(!hf_decide(r, t, HF_OK));
        CHECK(hf_verdict_load(r, t) == HF_TIMEOUT);
        CHECK(hf_released_wait(r, t, 0) == -ETIMEDOUT);
        hf_release(r, t);
        hf_release(r, t - 1);
        CHECK(hf_word_load(r, HF_WORD_RELEASED) == t && hf_released_wait(r, t, 0) == 0);
    }
}

static int open_region(uint32_t base, struct hf_region *ret_region)
{
    const char *reason;
    struct hf_header h;
    int fd = hf_region_create(&geometry);

    CHECK(fd >= 0 && hfp_region_rebase(fd, base, &reason) == 0 && hf_region_check(fd, &h, &reason) == 0);
    CHECK(hf_region_map(fd, &h, HF_SIDE_ENGINE, ret_region) == 0);
    return fd;
}

/* A file of random bytes, or a header of which one byte is another. */
static void check_header(uint64_t *state)
{
    int fd = memfd_create("smoke", MFD_ALLOW_SEALING), sound = hf_region_create(&geometry);
    unsigned char bytes[sizeof(struct hf_header)];
    struct hf_header h;
    const char *reason = NULL;

    CHECK(fd >= 0 && sound >= 0 && pread(sound, bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes));
    if (next_random(state) % 2)
        fill(bytes, sizeof(bytes), state);
    else
        bytes[next_random(state) % offsetof(struct hf_header, region_id)] ^= (unsigned char)(1 << next_random(state) % 8);
    CHECK(pwrite(fd, bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes));
    CHECK(ftruncate(fd, next_random(state) % 2000000) == 0 && hf_region_check(fd, &h, &reason) < 0 && reason);
    CHECK(pwrite(sound, bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes));
    /* Another vocabulary or window moves nothing: whether it is the one agreed on is the handshake's question. */
    CHECK(hf_region_check(sound, &h, &reason) < 0 || !hf_geometry_fault(&h.geometry));
    close(fd);
    close(sound);
}

/* CPU headers, request tables and GPU arrays of any content; replies of any content and length. Nothing may be read outside. */
static void check_decoders(const struct hf_region *r, uint64_t *state)
{
    unsigned char *body;
    size_t bytes = next_random(state) % 256;
    struct hw_header h;
    struct hfd_wire w;
    uint32_t t = 5;

    CHECK(hfd_wire_init(&w, r, 7) == 0);
    for (int i = 0; i < 64; i++) {
        struct hf_round *round = hf_round_of(r, t);

        fill(round, r->layout.slot_stride, state);
        round->round = t;
        round->session = 7;
        round->flags &= HF_ROUND_CONTEXT_ONLY;
        round->n_requests = next_random(state) % 6;
        round->n_rows = next_random(state) % (i % 2 ? 40 : UINT32_MAX);
        round->ring_bytes = next_random(state) % 70000;
        round->ring_offset = next_random(state) % 70000;
        for (uint32_t j = 0, at = 0; j < geometry.max_requests && i % 4; j++, at += 3)
            hf_requests_of(round)[j] = (struct hf_request){.request_slot = next_random(state) % 9, .batch_index = next_random(state) % 5,
                                                           .first_row = at, .rows = 3, .flags = next_random(state) % 5};
        if (!hfd_wire_take(&w, t))
            (void)hfd_wire_build(&w); /* says a reason, or builds a message from what there is */
    }
    w.round.n_requests = 1 + next_random(state) % 4;
    body = malloc(bytes ? bytes : 1); /* exactly as large, so that a sanitizer sees the first byte too many */
    CHECK(body);
    fill(body, bytes, state);
    if (bytes >= sizeof(struct hw_reply) && next_random(state) % 2)
        *(struct hw_reply *)body = (struct hw_reply){.status = next_random(state) % 6, .n_requests = w.round.n_requests, .drafts = 3};
    CHECK(hfd_wire_check_reply(&w, body, bytes) != HFD_REPLY_OK || bytes == sizeof(struct hw_reply) + w.round.n_requests * 3 * sizeof(int64_t));
    (void)hfd_wire_header(body, bytes, &h);
    (void)hfd_wire_foreign_header(body, bytes, &h);
    free(body);
    hfd_wire_free(&w);
}

int main(int argc, char **argv)
{
    uint64_t state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    struct hf_region r;
    int fd = open_region((uint32_t)-4, &r);

    check_words(&r, (uint32_t)-4);
    for (int i = 0; i < 300; i++) {
        check_header(&state);
        check_decoders(&r, &state);
    }
    hf_region_unmap(&r);
    close(fd);
    printf("%016lx\n", (unsigned long)hf_layout_hash());
    return 0;
}
