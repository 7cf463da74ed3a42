/* SPDX-License-Identifier: Apache-2.0 */
#include "echotransport.h"

#include "echo.h"
#include "hostflag.h"
#include "wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

struct echo {
    struct hfd_transport transport;
    uint64_t delay_ns, due_ns, max_bytes;
    uint32_t vocab;
    int timer;      /* readable once the answer is due */
    bool up;        /* said that it is connected */
    size_t bytes;   /* of the answer that is due; 0: none */
    unsigned char answer[];
};

static struct echo *of(struct hfd_transport *t)
{
    return (struct echo *)t; /* its first member */
}

static int begin_answer(struct echo *e, const struct hw_header *asked, enum hw_type type, uint64_t body_bytes)
{
    struct hw_header h = *asked;

    if (sizeof(h) + body_bytes > e->max_bytes)
        return -EMSGSIZE;
    h.type = (uint16_t)type;
    h.body_bytes = (uint32_t)body_bytes;
    memcpy(e->answer, &h, sizeof(h));
    e->bytes = sizeof(h) + body_bytes;
    e->due_ns = 0;
    return 0;
}

/* The rows of a round, one after the other. */
struct rows {
    const struct hfd_outgoing *message;
    const int64_t *positions;
    const int32_t *tokens;
    uint32_t row_bytes, piece;
    size_t at; /* in the piece */
};

static uint64_t next_row(struct rows *r, uint64_t sum)
{
    const struct hfd_piece *piece = &r->message->pieces[r->piece];

    sum = hf_echo_row(sum, *r->positions++, *r->tokens++, (const unsigned char *)piece->data + r->at, r->row_bytes);
    r->at += r->row_bytes;
    if (r->at == piece->bytes) {
        r->at = 0;
        r->piece++;
    }
    return sum;
}

static int delay(struct echo *e)
{
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(e->delay_ns / 1000000000), .tv_nsec = (long)(e->delay_ns % 1000000000)}};

    if (e->delay_ns == 0)
        return 0;
    e->due_ns = hf_now_ns() + e->delay_ns;
    return timerfd_settime(e->timer, 0, &when, NULL) < 0 ? -errno : 0;
}

static int answer_round(struct echo *e, const struct hfd_outgoing *m, const struct hw_header *asked)
{
    const unsigned char *at = (const unsigned char *)m->head + sizeof(*asked);
    const struct hw_round *round = (const struct hw_round *)at; /* the head is aligned (roundwire.c) */
    const struct hw_request *q = (const struct hw_request *)(round + 1);
    struct rows rows = {.message = m, .row_bytes = round->row_bytes};
    struct hw_reply reply = {.status = HW_STATUS_OK, .n_requests = round->n_requests, .drafts = round->drafts};
    unsigned char *ids;
    int r;

    if (round->flags & HW_ROUND_CONTEXT_ONLY)
        return 0;
    r = begin_answer(e, asked, HW_REPLY, sizeof(reply) + (uint64_t)reply.n_requests * reply.drafts * sizeof(int64_t));
    if (r < 0)
        return r;
    rows.positions = (const int64_t *)(q + round->n_requests);
    rows.tokens = (const int32_t *)(rows.positions + round->n_rows);
    ids = e->answer + sizeof(*asked);
    memcpy(ids, &reply, sizeof(reply));
    ids += sizeof(reply);
    for (uint32_t i = 0; i < round->n_requests; i++) {
        uint64_t sum = 0;

        for (uint32_t k = 0; k < q[i].rows; k++)
            sum = next_row(&rows, sum);
        for (uint32_t k = 0; k < round->drafts; k++, ids += sizeof(int64_t)) {
            int64_t id = hf_echo_id(sum, q[i].anchor, k, e->vocab);

            memcpy(ids, &id, sizeof(id));
        }
    }
    return delay(e);
}

static int send_message(struct hfd_transport *t, const struct hfd_outgoing *m)
{
    struct echo *e = of(t);
    struct hw_header asked;

    if (m->head_bytes < sizeof(asked))
        return -EBADMSG;
    memcpy(&asked, m->head, sizeof(asked));
    switch (asked.type) {
    case HW_OPEN:
        return begin_answer(e, &asked, HW_OPENED, 0);
    case HW_PING:
        return begin_answer(e, &asked, HW_PONG, 0);
    case HW_ROUND:
        return answer_round(e, m, &asked);
    default:
        return 0;
    }
}

static int next_message(struct hfd_transport *t, struct hfd_incoming *ret_in)
{
    struct echo *e = of(t);
    uint64_t expirations;

    *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_NONE};
    if (!e->up) {
        e->up = true;
        ret_in->kind = HFD_INCOMING_UP;
        return 0;
    }
    if (e->bytes == 0 || (e->due_ns && hf_now_ns() < e->due_ns))
        return 0;
    if (e->due_ns)
        (void)!read(e->timer, &expirations, sizeof(expirations)); /* it may be a moment late: then it wakes once for nothing */
    *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_MESSAGE, .data = e->answer, .bytes = e->bytes};
    e->bytes = 0;
    return 0;
}

static int fds(struct hfd_transport *t, int ret_fds[HFD_TRANSPORT_FDS])
{
    ret_fds[0] = of(t)->timer;
    return 1;
}

static int check(struct hfd_transport *t, const char **ret_reason)
{
    (void)t;
    (void)ret_reason;
    return 0;
}

void hfd_echo_discard(struct hfd_transport *transport)
{
    close(of(transport)->timer);
    free(transport);
}

static const struct hfd_transport_ops echo_ops = {
    .name = "echo",
    .send = send_message,
    .next = next_message,
    .fds = fds,
    .check = check,
    .close = hfd_echo_discard,
};

int hfd_echo_open(uint64_t delay_ns, uint64_t max_bytes, uint32_t vocab, struct hfd_transport **ret_transport)
{
    struct echo *e = calloc(1, sizeof(*e) + max_bytes);
    int r;

    if (!e)
        return -ENOMEM;
    e->transport.ops = &echo_ops;
    e->delay_ns = delay_ns;
    e->max_bytes = max_bytes;
    e->vocab = vocab;
    e->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (e->timer < 0) {
        r = -errno;
        free(e);
        return r;
    }
    *ret_transport = &e->transport;
    return 0;
}
