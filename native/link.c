/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker's link: NONE -> CONNECTING -> (connected) OPENING -> (OPENED) UP, and back to CONNECTING where the
 * connection goes. A link that is no good is condemned at once and returned when no round is in hand.
 */
#include "loopstate.h"

#include <errno.h>
#include <stdlib.h>

#define DRAIN_AT_ONCE 64     /* messages taken at a time: the beat must go on whatever the worker sends */
#define MOST_SENSELESS 1024  /* messages in a row that make no sense: the link is dropped */

static void set_state(struct hfd_loop *l, enum hfd_link_state state)
{
    struct hfd_link *k = &l->link;
    uint64_t now = hf_now_ns();

    if (k->state == HFD_LINK_UP && state != HFD_LINK_UP)
        HFD_COUNT(l, link_downs, 1);
    if (k->state != HFD_LINK_UP && state == HFD_LINK_UP)
        HFD_COUNT(l, link_ups, 1);
    k->state = state;
    k->changed_ns = k->heard_ns = now;
    k->pinged_ns = 0;
    k->pong_due = false;
    /* Relaxed: for status only. */
    atomic_store_explicit(&l->shown_link, state, memory_order_relaxed);
    atomic_store_explicit(&l->up_ns, state == HFD_LINK_UP ? now : 0, memory_order_relaxed);
}

static bool usable(const struct hfd_loop *l)
{
    return l->link.transport && !l->link.condemned;
}

static void return_link(struct hfd_loop *l, const char *reason)
{
    struct hfd_link *k = &l->link;

    if (!k->transport)
        return;
    k->transport->ops->close(k->transport);
    free(k->open);
    k->transport = NULL;
    k->open = NULL;
    k->condemned = NULL;
    k->ready = false;
    set_state(l, HFD_LINK_NONE);
    HFD_COUNT(l, links_returned, 1);
    hfd_loop_say(l, &(struct hfd_event){.kind = HFD_EVENT_LINK_RETURNED, .tag = k->tag, .reason = reason});
}

void hfd_link_take(struct hfd_loop *l, struct hfd_given *given)
{
    struct hfd_link next = {.transport = given->transport, .tag = given->tag, .open = given->open, .ready = true};

    next.succeeds = hfd_link_up(l) || hfd_link_coming(l);
    return_link(l, "another link was given");
    l->link = next;
    free(given);
    set_state(l, HFD_LINK_CONNECTING);
    HFD_COUNT(l, links_taken, 1);
}

void hfd_link_condemn(struct hfd_loop *l, const char *reason)
{
    if (!l->link.condemned)
        l->link.condemned = reason;
}

void hfd_link_settle(struct hfd_loop *l)
{
    const char *reason = l->link.condemned;
    uint64_t tag = l->link.tag;

    if (!reason)
        return;
    return_link(l, reason);
    HFD_COUNT(l, links_wanted, 1);
    hfd_loop_say(l, &(struct hfd_event){.kind = HFD_EVENT_LINK_WANTED, .tag = tag, .reason = reason});
}

int hfd_link_send(struct hfd_loop *l, const struct hfd_outgoing *m)
{
    struct hfd_link *k = &l->link;
    int r;

    if (!usable(l))
        return -ENOTCONN;
    r = k->transport->ops->send(k->transport, m);
    /* A send may take in what its fds would have told of. */
    k->ready = true;
    if (r == 0) {
        HFD_COUNT(l, messages_out, 1);
        HFD_COUNT(l, bytes_out, m->head_bytes + m->rows_bytes);
    } else if (r != -EAGAIN && r != -ENOMEM) {
        hfd_link_condemn(l, r == -ESHUTDOWN ? "the transport was shut down" : "the transport failed");
    }
    return r;
}

static int send_bytes(struct hfd_loop *l, const void *data, size_t bytes)
{
    return hfd_link_send(l, &(struct hfd_outgoing){.head = data, .head_bytes = bytes});
}

void hfd_link_open(struct hfd_loop *l)
{
    set_state(l, HFD_LINK_OPENING);
    HFD_COUNT(l, opens, 1);
    /* Where this fails, nobody answers, and open_limit_ns ends it. */
    (void)send_bytes(l, l->link.open->data, l->link.open->bytes);
}

static void take_up(struct hfd_loop *l)
{
    l->link.down_reason = NULL;
    hfd_link_open(l);
}

static void take_down(struct hfd_loop *l, const struct hfd_incoming *in)
{
    struct hfd_link *k = &l->link;
    struct hfd_event event = {.kind = in->barred ? HFD_EVENT_LINK_BARRED : HFD_EVENT_LINK_DOWN, .tag = k->tag, .reason = in->reason};
    bool again = k->state == HFD_LINK_CONNECTING && k->down_reason;

    if (in->barred)
        HFD_COUNT(l, links_barred, 1);
    if (again && !in->barred)
        return; /* a connection that was barred goes, too */
    again = again && k->down_reason == in->reason;
    if (k->state == HFD_LINK_UP)
        hfd_breaker_lose(l);
    set_state(l, HFD_LINK_CONNECTING);
    k->succeeds = false;
    k->down_reason = in->reason;
    if (!again)
        hfd_loop_say(l, &event);
}

static void take_answer(struct hfd_loop *l, enum hfd_link_state state, const unsigned char *body, uint32_t bytes)
{
    struct hfd_event event = {
        .kind = state == HFD_LINK_UP ? HFD_EVENT_LINK_UP : HFD_EVENT_LINK_REFUSED,
        .tag = l->link.tag,
        .body = body,
        .body_bytes = bytes,
    };

    if (state == HFD_LINK_REFUSED)
        l->link.reopen_after_ns = hfd_link_reopen_after(l);
    hfd_patience_answered(l, hf_now_ns());
    set_state(l, state);
    l->link.succeeds = false;
    if (state == HFD_LINK_REFUSED)
        HFD_COUNT(l, refusals, 1);
    else
        hfd_breaker_meet(l, body, bytes);
    hfd_loop_say(l, &event);
}

static bool take_pong(struct hfd_loop *l, const struct hw_header *h)
{
    if (!l->link.pong_due || h->round != l->link.ping || h->body_bytes != 0)
        return false;
    l->link.pong_due = false;
    HFD_COUNT(l, pongs, 1);
    return true;
}

/* A worker of another version refuses in its own; what it says is then for people only. */
static enum hfd_drop take_foreign(struct hfd_loop *l, const struct hfd_incoming *in)
{
    const unsigned char *body = (const unsigned char *)in->data + sizeof(struct hw_header);
    struct hw_header h;

    if (!hfd_wire_foreign_header(in->data, in->bytes, &h) || in->more_parts ||
        in->bytes - sizeof(h) > HW_MAX_CONTROL_BYTES)
        return HFD_DROP_MALFORMED;
    if (h.session != l->config.session || h.type != HW_REFUSED || l->link.state != HFD_LINK_OPENING)
        return HFD_DROP_MALFORMED;
    take_answer(l, HFD_LINK_REFUSED, body, (uint32_t)(in->bytes - sizeof(h)));
    return HFD_DROP_MAX;
}

/* Returns HFD_DROP_MAX where the message made sense, else why it is dropped. */
static enum hfd_drop take_message(struct hfd_loop *l, const struct hfd_incoming *in)
{
    const unsigned char *body = (const unsigned char *)in->data + sizeof(struct hw_header);
    bool opening = l->link.state == HFD_LINK_OPENING, whole = in->more_parts == 0;
    struct hw_header h;

    if (!hfd_wire_header(in->data, in->bytes, &h))
        return take_foreign(l, in);
    if (h.session != l->config.session)
        return HFD_DROP_SESSION;
    if (h.type == HW_REPLY)
        return hfd_round_reply(l, h.round, body, h.body_bytes, whole) ? HFD_DROP_MAX : HFD_DROP_STALE;
    if (!whole || h.body_bytes > HW_MAX_CONTROL_BYTES)
        return HFD_DROP_MALFORMED;
    if (h.type == HW_PONG)
        return take_pong(l, &h) ? HFD_DROP_MAX : HFD_DROP_TYPE;
    if (h.type == HW_OPENED && opening)
        take_answer(l, HFD_LINK_UP, body, h.body_bytes);
    else if (h.type == HW_REFUSED && (opening || l->link.state == HFD_LINK_UP)) /* a worker can change its mind */
        take_answer(l, HFD_LINK_REFUSED, body, h.body_bytes);
    else
        return HFD_DROP_TYPE;
    return HFD_DROP_MAX;
}

static void take_in(struct hfd_loop *l, const struct hfd_incoming *in)
{
    struct hfd_link *k = &l->link;
    enum hfd_drop drop = take_message(l, in);

    HFD_COUNT(l, messages_in, 1);
    HFD_COUNT(l, bytes_in, in->bytes);
    HFD_COUNT(l, extra_parts, in->more_parts);
    if (drop == HFD_DROP_MAX) {
        k->heard_ns = hf_now_ns();
        hfd_patience_answered(l, k->heard_ns);
        k->pinged_ns = 0;
        k->senseless = 0;
        return;
    }
    HFD_COUNT(l, dropped[drop], 1);
    if (++k->senseless >= MOST_SENSELESS)
        hfd_link_condemn(l, "the worker sends nothing but messages that make no sense");
}

void hfd_link_drain(struct hfd_loop *l)
{
    struct hfd_link *k = &l->link;
    struct hfd_incoming in;

    for (int i = 0; i < DRAIN_AT_ONCE && usable(l); i++) {
        if (k->transport->ops->next(k->transport, &in) < 0) {
            hfd_link_condemn(l, in.reason);
            return;
        }
        k->ready = in.kind != HFD_INCOMING_NONE;
        if (in.kind == HFD_INCOMING_NONE)
            return;
        if (in.kind == HFD_INCOMING_UP)
            take_up(l);
        else if (in.kind == HFD_INCOMING_DOWN)
            take_down(l, &in);
        else
            take_in(l, &in);
        if (l->flight.waiting && l->flight.verdict != HF_OPEN)
            return; /* answered: the rest can wait until the stream goes on */
    }
}

static void ping(struct hfd_loop *l, uint64_t now_ns)
{
    struct hfd_link *k = &l->link;
    struct hw_header h = hfd_wire_control(l->config.session, HW_PING, k->ping + 1);

    k->pinged_ns = now_ns; /* also where it cannot be sent: then the link is no better */
    if (send_bytes(l, &h, sizeof(h)) < 0)
        return;
    k->ping++;
    k->pong_due = true;
    HFD_COUNT(l, pings, 1);
}

void hfd_link_tend(struct hfd_loop *l)
{
    struct hfd_link *k = &l->link;
    uint64_t now_ns = hf_now_ns(), since = now_ns - k->changed_ns;

    if (!usable(l) || l->flight.waiting)
        return;
    if (k->state == HFD_LINK_OPENING && hfd_patience_spent(l, now_ns))
        hfd_link_condemn(l, "the worker does not answer OPEN");
    else if (k->state == HFD_LINK_REFUSED && l->config.reopen_ns && since >= k->reopen_after_ns)
        hfd_link_open(l);
    else if (k->state == HFD_LINK_UP && k->pinged_ns && hfd_patience_spent(l, now_ns))
        hfd_link_condemn(l, "the worker is silent: it does not answer PING");
    else if (k->state == HFD_LINK_UP && !k->pinged_ns && l->config.ping_ns && now_ns - k->heard_ns >= l->config.ping_ns)
        ping(l, now_ns);
}

void hfd_link_check(struct hfd_loop *l)
{
    const char *reason;

    if (usable(l) && l->link.transport->ops->check(l->link.transport, &reason) < 0)
        hfd_link_condemn(l, reason);
}

void hfd_link_end(struct hfd_loop *l, const struct hfd_encoded *close)
{
    if (close && usable(l) && (l->link.state == HFD_LINK_UP || l->link.state == HFD_LINK_OPENING))
        (void)send_bytes(l, close->data, close->bytes); /* best effort: a worker drops sessions that fell silent, too */
    return_link(l, "the session is over");
}
