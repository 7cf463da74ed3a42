/* SPDX-License-Identifier: Apache-2.0 */
#include "zmqlib.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* What is needed of zmq.h, which need not be there to build: libzmq 4's binary interface, which does not change. */
#define ZMQ_FD 14
#define ZMQ_EVENTS 15
#define ZMQ_POLLOUT 2
#define ZMQ_DONTWAIT 1
#define ZMQ_SNDMORE 2
#define ZMQ_ETERM (156384712 + 53)

#define EVENT_CONNECTED 0x0001
#define EVENT_DISCONNECTED 0x0200
#define EVENT_MONITOR_STOPPED 0x0400
#define EVENT_HANDSHAKE_FAILED_NO_DETAIL 0x0800
#define EVENT_HANDSHAKE_SUCCEEDED 0x1000
#define EVENT_HANDSHAKE_FAILED_PROTOCOL 0x2000
#define EVENT_HANDSHAKE_FAILED_AUTH 0x4000

#define MAX_EXTRA_PARTS 1024    /* thrown away of one message; more is an attack, the link is dropped */
#define MONITOR_EVERY 16        /* a look at the monitor at least every so many messages */
#define FLOOD_SLACK (256 << 10) /* bytes on their way that are no flood: the kernel's buffers, frames, encryption */

struct zmq_transport {
    struct hfd_transport base;
    const struct hfd_zmq *zmq;
    void *dealer, *monitor;
    int fds[HFD_TRANSPORT_FDS];
    uint64_t max_bytes;
    union hfd_zmq_message in; /* what next handed out */
    uint32_t in_a_row;      /* messages since the last look at the monitor */
    bool delivered;         /* a whole message came since the last check */
    int connection;         /* the kernel's socket under the DEALER, only ever asked for its TCP_INFO; -1: unknown */
    uint64_t accounted;     /* bytes it had received at the check after the last whole message */
};

static struct zmq_transport *zmq_transport_of(struct hfd_transport *t)
{
    return (struct zmq_transport *)t;
}

static int zmq_error(const struct hfd_zmq *z)
{
    int error = z->error();

    return error == ZMQ_ETERM ? -ESHUTDOWN : -error;
}

static const char *error_reason(int error)
{
    return error == -ESHUTDOWN ? "the ZMQ context was terminated" : "the ZMQ socket failed";
}

/* ---- send ---- */

static int send_part(const struct hfd_zmq *z, void *socket, union hfd_zmq_message *m, int flags)
{
    int r;

    do
        r = z->msg_send(m, socket, flags | ZMQ_DONTWAIT);
    while (r < 0 && z->error() == EINTR);
    if (r >= 0)
        return 0; /* m is libzmq's, and empty here */
    r = zmq_error(z);
    z->msg_close(m);
    return r;
}

static void copy_pieces(unsigned char *to, const struct hfd_outgoing *m)
{
    for (uint32_t i = 0; i < m->n_pieces; i++) {
        memcpy(to, m->pieces[i].data, m->pieces[i].bytes);
        to += m->pieces[i].bytes;
    }
}

/* Also lets libzmq see what its I/O thread sent it: a plain send looks only now and then, and could miss a new
   connection. Returns 0, -EAGAIN or another -errno. */
static int can_send(const struct zmq_transport *t)
{
    int events = 0;
    size_t size = sizeof(events);

    while (t->zmq->getsockopt(t->dealer, ZMQ_EVENTS, &events, &size) < 0)
        if (t->zmq->error() != EINTR)
            return zmq_error(t->zmq);
    return events & ZMQ_POLLOUT ? 0 : -EAGAIN;
}

static int zmq_send(struct hfd_transport *transport, const struct hfd_outgoing *m)
{
    struct zmq_transport *t = zmq_transport_of(transport);
    const struct hfd_zmq *z = t->zmq;
    union hfd_zmq_message head, rows;
    int r = can_send(t);

    if (r < 0)
        return r;
    if (z->msg_init_size(&head, m->head_bytes) < 0)
        return -ENOMEM;
    memcpy(z->msg_data(&head), m->head, m->head_bytes);
    if (!m->two_parts)
        return send_part(z, t->dealer, &head, 0);
    /* Both parts exist before the first is sent: no half message for want of memory. */
    if (z->msg_init_size(&rows, m->rows_bytes) < 0) {
        z->msg_close(&head);
        return -ENOMEM;
    }
    copy_pieces(z->msg_data(&rows), m);
    r = send_part(z, t->dealer, &head, ZMQ_SNDMORE);
    if (r < 0) {
        z->msg_close(&rows);
        return r;
    }
    /* -EAGAIN here means that the connection went: libzmq has rolled the first part back, nothing was sent. */
    return send_part(z, t->dealer, &rows, 0);
}

/* ---- receive ---- */

static uint64_t bytes_received(int connection)
{
    struct tcp_info info;
    socklen_t size = sizeof(info);

    memset(&info, 0, sizeof(info));
    if (connection < 0 || getsockopt(connection, IPPROTO_TCP, TCP_INFO, &info, &size) < 0)
        return 0;
    return info.tcpi_bytes_received;
}

/* 1: a part is in m. 0: none there. -errno. */
static int receive_part(const struct hfd_zmq *z, void *socket, union hfd_zmq_message *m)
{
    while (z->msg_recv(m, socket, ZMQ_DONTWAIT) < 0) {
        int r = zmq_error(z);

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

static void take_event(struct zmq_transport *t, uint16_t event, uint32_t value, struct hfd_incoming *ret_in)
{
    switch (event) {
    case EVENT_CONNECTED:
        t->connection = (int)value;
        t->accounted = 0;
        break;
    case EVENT_HANDSHAKE_SUCCEEDED:
        ret_in->kind = HFD_INCOMING_UP;
        break;
    case EVENT_DISCONNECTED:
        t->connection = -1;
        *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_DOWN, .reason = "the connection is gone"};
        break;
    case EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_DOWN, .reason = "the ZMQ handshake failed"};
        break;
    case EVENT_HANDSHAKE_FAILED_PROTOCOL:
        *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_DOWN, .reason = "the peer does not speak ZMQ as it should"};
        break;
    case EVENT_HANDSHAKE_FAILED_AUTH:
        *ret_in = (struct hfd_incoming){.kind = HFD_INCOMING_DOWN, .reason = "ZMQ authentication failed: check the keys"};
        break;
    }
}

/* 1: an event that ret_in tells of. 0: none there. -errno. */
static int next_event(struct zmq_transport *t, struct hfd_incoming *ret_in)
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
        ret_in->reason = r == -ESHUTDOWN ? error_reason(r) : "the ZMQ monitor ended";
    return r;
}

static int next_message(struct zmq_transport *t, struct hfd_incoming *ret_in)
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
        ret_in->reason = r == -EMSGSIZE ? "the worker sent a message of endless parts" : error_reason(r);
    return r;
}

static int zmq_next(struct hfd_transport *transport, struct hfd_incoming *ret_in)
{
    struct zmq_transport *t = zmq_transport_of(transport);
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

static int zmq_fds(struct hfd_transport *transport, int ret_fds[HFD_TRANSPORT_FDS])
{
    memcpy(ret_fds, zmq_transport_of(transport)->fds, sizeof(int) * HFD_TRANSPORT_FDS);
    return HFD_TRANSPORT_FDS;
}

/* libzmq hands a message of many parts out only when the last one is there, and keeps no count of those before: neither
   high-water mark nor MAXMSGSIZE bounds an endless one. What the kernel received since anything was complete does.
   Only TCP is counted; another transport's peer is a process of this machine. */
static int zmq_check(struct hfd_transport *transport, const char **ret_reason)
{
    struct zmq_transport *t = zmq_transport_of(transport);
    uint64_t received = bytes_received(t->connection);

    if (t->delivered) {
        t->delivered = false;
        t->accounted = received;
    }
    if (received <= t->accounted + t->max_bytes + FLOOD_SLACK)
        return 0;
    *ret_reason = "the worker floods: more bytes than any legal message, and none complete";
    return -EMSGSIZE;
}

static void zmq_close(struct hfd_transport *transport)
{
    struct zmq_transport *t = zmq_transport_of(transport);

    t->zmq->msg_close(&t->in);
    free(t);
}

static const struct hfd_transport_ops zmq_ops = {
    .name = "zmq",
    .send = zmq_send,
    .next = zmq_next,
    .fds = zmq_fds,
    .check = zmq_check,
    .close = zmq_close,
};

static int fd_of(const struct hfd_zmq *z, void *socket, int *ret_fd)
{
    size_t size = sizeof(*ret_fd);

    return z->getsockopt(socket, ZMQ_FD, ret_fd, &size) < 0 ? zmq_error(z) : 0;
}

int hfd_zmq_open(struct hfd_zmq *zmq, void *dealer, void *monitor, uint64_t max_bytes, struct hfd_transport **ret_transport)
{
    struct zmq_transport *t = calloc(1, sizeof(*t));
    int r;

    if (!t)
        return -ENOMEM;
    *t = (struct zmq_transport){
        .base.ops = &zmq_ops, .zmq = zmq, .dealer = dealer, .monitor = monitor, .max_bytes = max_bytes, .connection = -1};
    zmq->msg_init(&t->in);
    r = fd_of(zmq, dealer, &t->fds[0]);
    if (r == 0)
        r = fd_of(zmq, monitor, &t->fds[1]);
    if (r < 0) {
        zmq_close(&t->base);
        return r;
    }
    *ret_transport = &t->base;
    return 0;
}

void hfd_zmq_discard(struct hfd_transport *transport)
{
    zmq_close(transport);
}
