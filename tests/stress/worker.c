/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker and the transport to it, in the round loop's own thread. It holds the rows against the pattern and against the rule of
 * the contract (a request's positions only grow), and answers: mostly well, now and then late, wrongly, or not at all.
 */
#include "stress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define NEVER UINT64_MAX

struct stress_link {
    struct hfd_transport transport;
    struct stress_link *next;
    struct stress_daemon *daemon;
    uint64_t tag;
    int timer;         /* readable once the answer is due */
    _Atomic int closed;
    bool up, down;     /* to be said */
    uint64_t due_ns;   /* of the answer; NEVER: none */
    size_t bytes;
    unsigned char answer[sizeof(struct hw_header) + sizeof(struct hw_reply) + REQUESTS * DRAFTS * sizeof(int64_t)];
    unsigned char rows[HF_PART_ALIGN];
    struct {
        uint32_t generation;
        int64_t next; /* the lowest position that its rows may have */
    } request[REQUESTS];
};

static struct stress_link *link_of(struct hfd_transport *t)
{
    return (struct stress_link *)t; /* its first member */
}

static void put_answer(struct stress_link *k, uint16_t type, uint32_t round, const void *body, size_t bytes)
{
    struct hw_header h = {.magic = HW_MAGIC, .version = HW_VERSION, .type = type, .session = k->daemon->session, .round = round,
                          .body_bytes = (uint32_t)bytes};

    memcpy(k->answer, &h, sizeof(h));
    memcpy(k->answer + sizeof(h), body, bytes);
    k->bytes = sizeof(h) + bytes;
}

static void answer_after(struct stress_link *k, uint64_t ns)
{
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) + 1}};

    k->due_ns = hf_now_ns() + ns;
    timerfd_settime(k->timer, 0, &when, NULL);
}

/* ---- what came ---- */

static void check_row(struct stress_link *k, const struct hw_request *q, int64_t position, int32_t token, const unsigned char *row, uint32_t t)
{
    uint32_t slot = q->request_slot;
    unsigned char want = stress_byte(slot, q->generation, position);

    if (k->request[slot].generation != q->generation) {
        k->request[slot].generation = q->generation;
        k->request[slot].next = 0;
    }
    if (position < k->request[slot].next)
        stress_violation("round %u brings position %ld of slot %u again", t, (long)position, slot);
    k->request[slot].next = position + 1;
    if (token != stress_token(slot, q->generation, position))
        stress_violation("a token of round %u is not the one that was meant", t);
    if (row[0] != want || memcmp(row, row + 1, ROW_BYTES - 1) != 0)
        stress_violation("a row of round %u is not the one that was meant", t);
    atomic_fetch_add_explicit(&stress_counts.rows, 1, memory_order_relaxed);
}

static void check_round(struct stress_link *k, const unsigned char *head, uint32_t t)
{
    const struct hw_round *round = (const struct hw_round *)(head + sizeof(struct hw_header));
    const struct hw_request *table = (const struct hw_request *)(round + 1);
    const int64_t *positions = (const int64_t *)(table + round->n_requests);
    const int32_t *tokens = (const int32_t *)(positions + round->n_rows);
    uint32_t at = 0;

    for (uint32_t i = 0; i < round->n_requests; i++)
        for (uint32_t j = 0; j < table[i].rows; j++, at++)
            check_row(k, &table[i], positions[at], tokens[at], k->rows + (size_t)at * ROW_BYTES, t);
    if (at != round->n_rows)
        stress_violation("round %u has %u rows and says %u", t, at, round->n_rows);
}

static void answer_round(struct stress_link *k, const struct hw_round *round, uint32_t t)
{
    struct {
        struct hw_reply reply;
        int64_t ids[REQUESTS * DRAFTS];
    } body = {.reply = {.n_requests = round->n_requests, .drafts = DRAFTS}};
    uint64_t chance = stress_random() % 1000;

    for (uint32_t i = 0; i < round->n_requests * DRAFTS; i++)
        body.ids[i] = stress_id(k->daemon->session, t, i);
    if (chance < 4)
        body.ids[0] = VOCAB;
    if (chance >= 4 && chance < 8)
        body.reply = (struct hw_reply){.status = HW_STATUS_BUSY};
    put_answer(k, HW_REPLY, t, &body, sizeof(body.reply) + body.reply.n_requests * DRAFTS * sizeof(int64_t));
    if (chance == 8)
        k->due_ns = NEVER;
    else
        answer_after(k, chance < 900 ? 0 : stress_random() % (chance < 980 ? 300000 : 3000000));
}

static int send_message(struct hfd_transport *t, const struct hfd_outgoing *m)
{
    struct stress_link *k = link_of(t);
    const struct hw_round *round = (const struct hw_round *)((const unsigned char *)m->head + sizeof(struct hw_header));
    struct hw_header h;
    size_t bytes = 0;

    memcpy(&h, m->head, sizeof(h)); /* a control message is not aligned */
    if (h.type == HW_OPEN) {
        put_answer(k, HW_OPENED, 0, "{}", 2);
        answer_after(k, 0);
        return 0;
    }
    if (h.type != HW_ROUND)
        return 0;
    if (stress_random() % 4000 == 0)
        return stress_random() % 2 ? -EIO : -EAGAIN;
    for (uint32_t i = 0; i < m->n_pieces; i++) {
        if (stress_random() % 256 == 0) /* rows are read for as long as send lasts */
            hf_sleep_ns(stress_random() % 4000000);
        memcpy(k->rows + bytes, m->pieces[i].data, m->pieces[i].bytes);
        bytes += m->pieces[i].bytes;
    }
    check_round(k, m->head, h.round);
    if (!(round->flags & HW_ROUND_CONTEXT_ONLY))
        answer_round(k, round, h.round);
    k->down = stress_random() % 8000 == 0;
    return 0;
}

/* ---- what goes back ---- */

static int next(struct hfd_transport *t, struct hfd_incoming *ret_in)
{
    struct stress_link *k = link_of(t);

    *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_NONE};
    if (k->down) {
        k->down = false;
        k->up = true;
        k->due_ns = NEVER;
        *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_DOWN, .reason = "the stress cut it"};
    } else if (k->up) {
        k->up = false;
        memset(k->request, 0, sizeof(k->request));
        ret_in->kind = HFD_INCOMING_UP;
    } else if (k->due_ns != NEVER && hf_now_ns() >= k->due_ns) {
        k->due_ns = NEVER;
        *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_MESSAGE, .data = k->answer, .bytes = k->bytes};
    }
    return 0;
}

static int fds(struct hfd_transport *t, int ret_fds[HFD_TRANSPORT_FDS])
{
    ret_fds[0] = link_of(t)->timer;
    return link_of(t)->due_ns == NEVER ? 0 : 1;
}

static int check(struct hfd_transport *t, const char **ret_reason)
{
    (void)t;
    *ret_reason = NULL;
    return 0;
}

static void close_link(struct hfd_transport *t)
{
    atomic_store(&link_of(t)->closed, 1);
}

static const struct hfd_transport_ops ops = {.name = "stress", .send = send_message, .next = next, .fds = fds, .check = check, .close = close_link};

/* ---- the giver's side ---- */

static void free_link(struct stress_link *k)
{
    close(k->timer);
    free(k);
}

void stress_link_give(struct stress_daemon *d)
{
    struct hw_header open = {.magic = HW_MAGIC, .version = HW_VERSION, .type = HW_OPEN, .session = d->session};
    struct stress_link *k = calloc(1, sizeof(*k));

    k->transport.ops = &ops;
    k->daemon = d;
    k->tag = ++d->tag;
    k->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    k->up = true;
    k->due_ns = NEVER;
    if (hfd_loop_link(d->loop, &k->transport, k->tag, &open, sizeof(open)) < 0) {
        free_link(k);
        return;
    }
    k->next = d->links;
    d->links = k;
}

void stress_link_returned(struct stress_daemon *d, uint64_t tag)
{
    for (struct stress_link **at = &d->links; *at; at = &(*at)->next)
        if ((*at)->tag == tag) {
            struct stress_link *k = *at;

            if (!atomic_load(&k->closed))
                stress_violation("link %lu was returned, and its transport is not closed", (unsigned long)tag);
            *at = k->next;
            free_link(k);
            return;
        }
    stress_violation("a link was returned that was not given: %lu", (unsigned long)tag);
}

void stress_links_free(struct stress_daemon *d)
{
    while (d->links) {
        struct stress_link *k = d->links;

        d->links = k->next;
        free_link(k);
    }
}
