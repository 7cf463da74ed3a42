/* SPDX-License-Identifier: Apache-2.0 */
/* What comes in on a ZMQ link: messages from the DEALER, news of the connection from its monitor. */
#include "zmqlib.h"

#include <errno.h>
#include <string.h>

#define EVENT_CONNECTED 0x0001
#define EVENT_DISCONNECTED 0x0200
#define EVENT_MONITOR_STOPPED 0x0400
#define EVENT_HANDSHAKE_FAILED_NO_DETAIL 0x0800
#define EVENT_HANDSHAKE_SUCCEEDED 0x1000
#define EVENT_HANDSHAKE_FAILED_PROTOCOL 0x2000
#define EVENT_HANDSHAKE_FAILED_AUTH 0x4000
#define VALUE_MECHANISM_MISMATCH 0x11000002

#define MAX_EXTRA_PARTS 1024    /* thrown away of one message; more is an attack, the link is dropped */
#define MONITOR_EVERY 16        /* a look at the monitor at least every so many messages */

/* 1: a part is in m. 0: none there. -errno. */
static int receive_part(const struct hfd_zmq *z, void *socket, union hfd_zmq_message *m)
{
    while (z->msg_recv(m, socket, ZMQ_DONTWAIT) < 0) {
        int r = hfd_zmq_error(z);

        if (r == -EAGAIN)
            return 0;
        if (r != -EINTR)
            return r;
    }
    return 1;
}

/* The rest of a message whose first part was taken. Returns how many parts that was, or -errno. */
static int discard_parts(const struct hfd_zmq *z, void *socket, const union hfd_zmq_message *first)
{
    union hfd_zmq_message part;
    int more = z->msg_more(first), n = 0, r = 0;

    z->msg_init(&part);
    while (more && r >= 0 && n <= MAX_EXTRA_PARTS) {
        r = receive_part(z, socket, &part); /* the parts of a message arrive together */
        more = r > 0 && z->msg_more(&part);
        n += r > 0;
    }
    z->msg_close(&part);
    if (r < 0)
        return r;
    return n > MAX_EXTRA_PARTS ? -EMSGSIZE : n;
}

static void take_failure(struct hfd_zmq_transport *t, const char *reason, struct hfd_incoming *ret_in)
{
    t->handshaking = false;
    *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_DOWN, .reason = reason, .barred = true};
}

static void take_event(struct hfd_zmq_transport *t, uint16_t event, uint32_t value, struct hfd_incoming *ret_in)
{
    switch (event) {
    case EVENT_CONNECTED:
        t->connection = (int)value;
        t->cookie = hfd_zmq_cookie(t->connection);
        t->accounted = 0;
        t->handshaking = true;
        break;
    case EVENT_HANDSHAKE_SUCCEEDED:
        t->handshaking = false;
        ret_in->kind = HFD_INCOMING_UP;
        break;
    case EVENT_DISCONNECTED:
        t->connection = -1;
        if (t->handshaking)
            take_failure(t, "the connection went before the ZMQ handshake was over", ret_in);
        else
            *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_DOWN, .reason = "the connection is gone"};
        break;
    case EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        take_failure(t, "the ZMQ handshake was broken off: no worker there, or it has other CURVE keys than ours", ret_in);
        break;
    case EVENT_HANDSHAKE_FAILED_PROTOCOL:
        take_failure(t, value == VALUE_MECHANISM_MISMATCH ? "one side has CURVE keys, the other none"
                                                          : "the peer does not speak ZMQ as it should",
                     ret_in);
        break;
    case EVENT_HANDSHAKE_FAILED_AUTH:
        take_failure(t, "the worker does not allow our CURVE key", ret_in);
        break;
    }
}

/* 1: an event that ret_in tells of. 0: none there. -errno. */
static int next_event(struct hfd_zmq_transport *t, struct hfd_incoming *ret_in)
{
    const struct hfd_zmq *z = t->zmq;
    union hfd_zmq_message m;
    uint16_t event;
    uint32_t value;
    int r;

    z->msg_init(&m);
    t->in_a_row = 0;
    for (;;) {
        /* Frame 1: uint16 event, uint32 value, not aligned. Frame 2: the endpoint. */
        r = receive_part(z, t->monitor, &m);
        if (r <= 0)
            break;
        if (z->msg_size(&m) != sizeof(event) + sizeof(value)) {
            r = -EPROTO;
            break;
        }
        memcpy(&event, z->msg_data(&m), sizeof(event));
        memcpy(&value, (unsigned char *)z->msg_data(&m) + sizeof(event), sizeof(value));
        r = discard_parts(z, t->monitor, &m);
        if (r < 0)
            break;
        r = event == EVENT_MONITOR_STOPPED ? -ENOTCONN : 1;
        if (r < 0)
            break;
        take_event(t, event, value, ret_in);
        if (ret_in->kind != HFD_INCOMING_NONE)
            break;
    }
    z->msg_close(&m);
    if (r < 0)
        ret_in->reason = r == -ESHUTDOWN ? hfd_zmq_error_reason(r) : "the ZMQ monitor ended";
    return r;
}

static int next_message(struct hfd_zmq_transport *t, struct hfd_incoming *ret_in)
{
    const struct hfd_zmq *z = t->zmq;
    int r = receive_part(z, t->dealer, &t->in);

    if (r > 0) {
        t->in_a_row++;
        t->delivered = true;
        r = discard_parts(z, t->dealer, &t->in);
        if (r >= 0) {
            *ret_in = (struct hfd_incoming){
                .kind = HFD_INCOMING_MESSAGE,
                .data = z->msg_data(&t->in),
                .bytes = z->msg_size(&t->in),
                .more_parts = (uint32_t)r,
            };
            return 1;
        }
    }
    if (r < 0)
        ret_in->reason = r == -EMSGSIZE ? "the worker sent a message of endless parts" : hfd_zmq_error_reason(r);
    return r;
}

int hfd_zmq_next(struct hfd_transport *transport, struct hfd_incoming *ret_in)
{
    struct hfd_zmq_transport *t = hfd_zmq_transport_of(transport);
    bool monitor_first = t->in_a_row >= MONITOR_EVERY;
    int r = 0;

    *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_NONE};
    /* Messages first: what a worker sent before it went is still an answer. But not for ever. */
    if (!monitor_first)
        r = next_message(t, ret_in);
    if (r == 0)
        r = next_event(t, ret_in);
    if (r == 0 && monitor_first)
        r = next_message(t, ret_in);
    return r < 0 ? r : 0;
}
