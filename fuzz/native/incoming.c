/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what a daemon takes in from a worker: parts and monitor events through the ZMQ transport, messages through the
 * link, replies into the region. The loop is the product's, on this thread, with a clock of the fuzzer's and no waits; what it
 * may make of a message is judged again here (judge.c) and must agree.
 */
#include "fakeclock.h"
#include "judge.h"
#include "regions.h"

#include <errno.h>

#define SESSION UINT64_C(0x5e55104d)
#define MAX_STEPS 200
#define BIG_BYTES (HW_MAX_CONTROL_BYTES + 4096) /* of a message that the input does not hold itself */
#define ARENA_BYTES (1 << 20)

static struct hf_region regions[N_GEOMETRIES];
static struct { /* messages that are made up here, and must live until they are handed out */
    unsigned char bytes[ARENA_BYTES];
    size_t used;
} arena;

static unsigned char *reserve(size_t bytes)
{
    unsigned char *at = arena.bytes + arena.used;

    if (bytes > ARENA_BYTES - arena.used)
        return NULL;
    arena.used += bytes;
    memset(at, 'x', bytes);
    return at;
}

static void give_link(struct hfd_loop *l)
{
    struct hfd_given *given = malloc(sizeof(*given));
    struct hfd_encoded *open = malloc(sizeof(*open) + sizeof(struct hw_header));
    struct hw_header h = hfd_wire_control(SESSION, HW_OPEN, 0);

    MUST(given && open);
    open->bytes = sizeof(h);
    memcpy(open->data, &h, sizeof(h));
    *given = (struct hfd_given){.tag = 7, .open = open};
    fake_reset();
    MUST(hfd_zmq_open(&fake_library, &fake.dealer, &fake.monitor, BIG_BYTES, &given->transport) == 0);
    hfd_link_take(l, given);
}

static void hear(struct hfd_loop *l)
{
    struct hfd_event event;

    while (hfd_events_take(&l->events, &event))
        judge_event(&event);
    if (!l->link.transport)
        give_link(l);
}

static struct hfd_loop *new_loop(struct cursor *c, const struct hf_region *r)
{
    struct hfd_loop *l = calloc(1, sizeof(*l));
    uint8_t settings = cursor_u8(c);
    uint32_t base = settings & 1 ? 0xfffffffe : 5;

    MUST(l);
    l->config = (struct hfd_config){.session = SESSION, .network_timeout_ns = 1, .nap_ns = 1, .ping_ns = 100000,
                                    .ping_limit_ns = 200000, .open_limit_ns = 300000, .reopen_ns = 50000, .socket = -1,
                                    .event_fd = -1, .base = base, .breaker_failures = settings >> 1 & 3,
                                    .breaker_cool_ns = 40000};
    l->region = *r;
    l->command_fd = -1;
    l->done = base;
    memset(r->engine, 0, sizeof(*r->engine));
    memset(r->shared, 0, sizeof(*r->shared));
    memset(r->daemon, 0, sizeof(*r->daemon));
    memset(r->base + r->layout.replies, 0, r->geometry.slots * r->layout.reply_stride);
    atomic_store(&r->engine->submitted.value, base);
    atomic_store(&r->engine->gathered.value, base);
    atomic_store(&r->shared->released.value, base);
    atomic_store(&r->daemon->retired.value, base);
    hfd_breaker_init(l);
    hf_nap_init(&l->nap, 0, 1);
    MUST(hfd_wire_init(&l->wire, &l->region, SESSION) == 0);
    return l;
}

static void put_control(struct fake_queue *q, enum hw_type type, size_t bytes)
{
    struct hw_header h = hfd_wire_control(SESSION, type, 0);
    unsigned char *at = reserve(sizeof(h) + bytes);

    MUST(at);
    h.body_bytes = (uint32_t)bytes;
    memcpy(at, &h, sizeof(h));
    fake_put(q, at, sizeof(h) + bytes, false, 0);
}

/* As the loop at rest: what is there is seen at once, not only at the next beat. */
static void turn(struct hfd_loop *l)
{
    hfd_loop_sleep(l, 0, true);
    hfd_loop_tend(l);
}

/* Connected, and OPEN sent; unless there is to be no more than that, the session is open too. */
static void open_session(struct hfd_loop *l, bool opened)
{
    static const uint8_t up[6] = {0x00, 0x10};

    fake_put(&fake.monitor, up, sizeof(up), false, 0);
    turn(l);
    if (opened)
        put_control(&fake.dealer, HW_OPENED, 2);
    turn(l);
    hear(l);
}

static void put_events(struct cursor *c, struct fake_queue *q)
{
    static const uint16_t events[] = {0x1000, 0x0200, 0x0001, 0x0800, 0x2000, 0x4000, 0x0400, 0};
    uint8_t choice = cursor_u8(c);
    unsigned char *at = reserve(7);
    uint16_t event = events[choice & 7] ? events[choice & 7] : cursor_u16(c);
    uint32_t value = choice & 8 ? cursor_u32(c) : 9;

    if (!at)
        return;
    memcpy(at, &event, sizeof(event));
    memcpy(at + 2, &value, sizeof(value));
    if (choice & 0x10)
        fake_put(q, NULL, 0, false, choice & 0x20 ? EINTR : EAGAIN);
    fake_put(q, at, choice >> 6 == 3 ? choice & 7 : 6, true, 0);
    fake_put(q, at, 0, false, 0);
}

/* A message of this session with a header that fits, unless the input says otherwise, before a body that may not. */
static void put_message(struct cursor *c, struct fake_queue *q)
{
    uint8_t type = cursor_u8(c), spoil = cursor_u8(c);
    size_t want = cursor_u8(c), got;
    const uint8_t *body = cursor_bytes(c, want, &got);
    size_t bytes = spoil & 1 ? (size_t)(BIG_BYTES - (spoil >> 4) * 512) : got;
    struct hw_header h = hfd_wire_control(SESSION ^ (spoil & 2), type % (HW_TYPE_MAX + 1), spoil & 4 ? cursor_u32(c) : 0);
    unsigned char *at = reserve(sizeof(h) + bytes);

    if (!at)
        return;
    h.version = spoil & 8 ? 2 : h.version;
    h.body_bytes = (uint32_t)bytes;
    memcpy(at, &h, sizeof(h));
    memcpy(at + sizeof(h), body, got < bytes ? got : bytes);
    fake_put(q, at, sizeof(h) + bytes, type & 0x80, 0);
    if (type & 0x80) /* a second part, of no more than is there */
        fake_put(q, at, type & 0x40 ? sizeof(h) : 0, false, 0);
}

static int64_t odd_id(struct cursor *c, const struct hf_geometry *g)
{
    const int64_t odd[] = {-1, g->vocab, INT64_MIN, INT64_MAX, INT64_C(1) << 32, (int64_t)g->vocab - 1, (int64_t)cursor_number(c, 8)};

    return odd[cursor_u8(c) % (sizeof(odd) / sizeof(odd[0]))];
}

/* A reply to the next round, as a worker makes it but for what the input spoils: its round, counts, status, size, ids. */
static void put_reply(struct cursor *c, struct fake_queue *q, const struct hfd_loop *l, uint32_t n_requests)
{
    const struct hf_geometry *g = &l->region.geometry;
    uint8_t spoil = cursor_u8(c), how = spoil ? cursor_u8(c) : 0;
    struct hw_reply reply = {.n_requests = n_requests, .drafts = g->drafts, .extra_bytes = g->extra_bytes};
    struct hw_header h = hfd_wire_control(SESSION, HW_REPLY, l->done + 1);
    size_t n_ids = n_requests * g->drafts, bytes = sizeof(reply) + n_ids * sizeof(int64_t) + n_requests * g->extra_bytes;
    unsigned char *at = reserve(sizeof(h) + bytes + 256);

    if (!at)
        return;
    memset(at, 0, sizeof(h) + bytes + 256);
    if (spoil & 1) /* also a count that wraps around to the same size */
        ((uint32_t *)&reply)[how & 3] = how & 4 ? ((uint32_t *)&reply)[how & 3] + (UINT32_C(1) << (how >> 3)) : cursor_u8(c);
    if (spoil & 2 || (reply.status && spoil & 64))
        bytes = how & 128 ? sizeof(reply) : bytes + (uint64_t)(int64_t)(int8_t)cursor_u8(c);
    if (reply.status && spoil & 64)
        reply.n_requests = reply.drafts = reply.extra_bytes = 0;
    h.round += spoil & 4 ? (uint32_t)(int8_t)cursor_u8(c) : 0;
    bytes = bytes > ARENA_BYTES ? 0 : bytes;
    h.body_bytes = (uint32_t)bytes;
    h.session ^= spoil >> 7;
    memcpy(at, &h, sizeof(h));
    memcpy(at + sizeof(h), &reply, sizeof(reply));
    for (size_t i = 0; i < n_ids; i++)
        memcpy(at + sizeof(h) + sizeof(reply) + i * 8, (int64_t[]){spoil & 8 ? (int64_t)(cursor_u8(c) % g->vocab) : 0}, 8);
    if (spoil & 16)
        memcpy(at + sizeof(h) + sizeof(reply) + how % n_ids * 8, (int64_t[]){odd_id(c, g)}, 8);
    fake_put(q, at, sizeof(h) + bytes, spoil & 32, 0);
    if (spoil & 32)
        fake_put(q, NULL, 0, false, 0);
}

static void run_round(struct cursor *c, struct hfd_loop *l, uint32_t n_requests)
{
    const struct hf_region *r = &l->region;
    uint32_t t = l->done + 1;
    uint8_t how = cursor_u8(c);
    struct hf_round *round = hf_round_of(r, t);
    struct hf_request *q = hf_requests_of(round);

    *round = (struct hf_round){.round = t, .session = SESSION, .flags = (how & 7) == 7, .n_requests = n_requests, .ring_bytes = 65536,
                               .submitted_ns = fake_now_ns};
    for (uint32_t i = 0; i < n_requests; i++)
        q[i] = (struct hf_request){.request_slot = i, .generation = 1, .batch_index = i, .flags = HF_REQUEST_DRAFT};
    atomic_store(hf_verdict_of(r, t), hf_verdict_pack(t, HF_OPEN));
    atomic_store(&r->engine->gathered.value, t);
    hf_doorbell_ring(r, t);
    if ((how >> 3 & 7) == 7)
        hf_decide(r, t, HF_EXPIRED); /* the watchdog was first */
    judge_begin(l, t);
    hfd_round_run(l, t);
    judge_end(l, t);
    atomic_store(&r->engine->consumed.value, t);
}

static void step(struct cursor *c, struct hfd_loop *l, uint32_t n_requests)
{
    uint8_t op = cursor_u8(c);
    struct fake_queue *q = op & 0x80 ? &fake.later : &fake.dealer;
    size_t bytes, n;
    const uint8_t *at;

    switch (op & 15) {
    case 0:
        at = cursor_bytes(c, cursor_u8(c), &bytes);
        fake_put(q, at, bytes, op & 0x40, 0);
        break;
    case 1: case 2: case 3:
        put_message(c, q);
        break;
    case 4: case 5: case 6:
        put_reply(c, q, l, n_requests);
        break;
    case 7: case 8:
        put_events(c, &fake.monitor);
        break;
    case 9:
        fake_put(q, NULL, 0, false, (const int[]){EAGAIN, EINTR, 156384765, ENOTSOCK}[op >> 4 & 3]);
        break;
    case 10:
        for (n = cursor_u16(c) & 2047; n > 0; n--)
            fake_put(q, NULL, 0, n > 1, 0);
        break;
    case 11: case 12: case 13:
        run_round(c, l, n_requests);
        break;
    case 14:
        fake.refused_sends = op & 0x40 ? 3 : 0;
        fake.broken_sends = (op & 0x70) == 0x70;
        fake.kernel_bytes += (uint64_t)cursor_u16(c) << 4;
        break;
    default:
        fake_now_ns += (uint64_t)cursor_u8(c) * 1000;
        atomic_store(&l->command, op & 0x40 ? HFD_COMMAND_DRAIN : 0);
        turn(l);
        hfd_link_check(l);
    }
    hear(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct cursor c = {data, data + bytes};
    uint8_t first = cursor_u8(&c);
    struct hf_region *r = &regions[(first & 3) % N_GEOMETRIES];
    uint32_t n_requests;
    struct hfd_loop *l;

    if (!r->base)
        region_in_memory(&geometries[(first & 3) % N_GEOMETRIES], r);
    n_requests = 1 + (first >> 4) % r->geometry.max_requests;
    fake_now_ns = 1000000000;
    arena.used = 0;
    l = new_loop(&c, r);
    give_link(l);
    if (first & 0x0c)
        open_session(l, (first & 0x0c) != 4);
    for (int i = 0; i < MAX_STEPS && cursor_left(&c); i++)
        step(&c, l, n_requests);
    judge_counters(l);
    hfd_link_end(l, NULL);
    hfd_events_clear(&l->events);
    hfd_wire_free(&l->wire);
    MUST(fake.live == 0);
    free(l);
    return 0;
}
