/* SPDX-License-Identifier: Apache-2.0 */
/* The ZMQ transport: how a message is put together and goes out; what comes in is zmqincoming.c's. */
#include "zmqlib.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define ZMQ_FD 14
#define ZMQ_EVENTS 15
#define ZMQ_POLLOUT 2
#define ZMQ_SNDMORE 2

#define MEMORY_SLACK (64ULL << 20) /* what a daemon may grow by for other reasons, between two messages of one worker */
#define FLOOD_SLACK (256 << 10) /* bytes on their way that are no flood: the kernel's buffers, frames, encryption */

static int send_part(const struct hfd_zmq *z, void *socket, union hfd_zmq_message *m, int flags)
{
    int r;

    do
        r = z->msg_send(m, socket, flags | ZMQ_DONTWAIT);
    while (r < 0 && z->error() == EINTR);
    if (r >= 0)
        return 0; /* m is libzmq's, and empty here */
    r = hfd_zmq_error(z);
    z->msg_close(m);
    return r;
}

/* Rows that libzmq has until they are sent. */
struct rows {
    struct hfd_zmq *zmq;
    size_t bytes;
    unsigned char data[];
};

/* In a thread of libzmq's. */
static void give_rows_back(void *data, void *hint)
{
    struct rows *rows = hint;
    struct hfd_zmq *z = rows->zmq;
    size_t bytes = rows->bytes;

    (void)data;
    /* Relaxed: a sum, which orders nothing. Before the free, as it is added behind the copy: what is counted is there. */
    atomic_fetch_sub_explicit(&z->outgoing, bytes, memory_order_relaxed);
    free(rows);
}

static void copy_pieces(unsigned char *to, const struct hfd_outgoing *m)
{
    for (uint32_t i = 0; i < m->n_pieces; i++) {
        memcpy(to, m->pieces[i].data, m->pieces[i].bytes);
        to += m->pieces[i].bytes;
    }
}

static int make_rows(struct hfd_zmq *z, const struct hfd_outgoing *m, union hfd_zmq_message *ret_message)
{
    struct rows *rows = malloc(sizeof(*rows) + m->rows_bytes);

    if (!rows)
        return -ENOMEM;
    *rows = (struct rows){.zmq = z, .bytes = m->rows_bytes};
    if (z->msg_init_data(ret_message, rows->data, m->rows_bytes, give_rows_back, rows) < 0) {
        free(rows);
        return -ENOMEM;
    }
    copy_pieces(rows->data, m);
    atomic_fetch_add_explicit(&z->outgoing, m->rows_bytes, memory_order_relaxed);
    return 0;
}

/* Also lets libzmq see what its I/O thread sent it: a plain send looks only now and then, and could miss a new
   connection. Returns 0, -EAGAIN or another -errno. */
static int can_send(const struct hfd_zmq_transport *t)
{
    int events = 0;
    size_t size = sizeof(events);

    while (t->zmq->getsockopt(t->dealer, ZMQ_EVENTS, &events, &size) < 0)
        if (t->zmq->error() != EINTR)
            return hfd_zmq_error(t->zmq);
    return events & ZMQ_POLLOUT ? 0 : -EAGAIN;
}

static int zmq_send(struct hfd_transport *transport, const struct hfd_outgoing *m)
{
    struct hfd_zmq_transport *t = hfd_zmq_transport_of(transport);
    struct hfd_zmq *z = t->zmq;
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
    r = make_rows(z, m, &rows);
    if (r < 0) {
        z->msg_close(&head);
        return r;
    }
    r = send_part(z, t->dealer, &head, ZMQ_SNDMORE);
    if (r < 0) {
        z->msg_close(&rows);
        return r;
    }
    /* -EAGAIN here means that the connection went: libzmq has rolled the first part back, nothing was sent. */
    return send_part(z, t->dealer, &rows, 0);
}

uint64_t hfd_zmq_cookie(int connection)
{
    uint64_t cookie = 0;
    socklen_t size = sizeof(cookie);

    return getsockopt(connection, SOL_SOCKET, SO_COOKIE, &cookie, &size) < 0 ? 0 : cookie;
}

static bool bytes_received(int connection, uint64_t *ret_bytes)
{
    struct tcp_info info;
    socklen_t size = sizeof(info);

    memset(&info, 0, sizeof(info));
    if (getsockopt(connection, IPPROTO_TCP, TCP_INFO, &info, &size) < 0)
        return false;
    *ret_bytes = info.tcpi_bytes_received;
    return true;
}

/* This process's own resident memory, without what it shares (regions) and what it has to send; 0 where that cannot be known. */
static uint64_t memory_of(const struct hfd_zmq *z)
{
    uint64_t outgoing = atomic_load_explicit(&z->outgoing, memory_order_relaxed), own, after;
    unsigned long long size, resident, shared;
    char text[128];
    ssize_t n = z->statm < 0 ? -1 : pread(z->statm, text, sizeof(text) - 1, 0);

    if (n <= 0)
        return 0;
    text[n] = '\0';
    if (sscanf(text, "%llu %llu %llu", &size, &resident, &shared) != 3 || shared > resident)
        return 0;
    /* The smaller: a little too much for a moment does no harm, too little would stay as what is accounted for. */
    after = atomic_load_explicit(&z->outgoing, memory_order_relaxed);
    if (after < outgoing)
        outgoing = after;
    own = (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
    return own > outgoing ? own - outgoing : 0;
}

/* Acknowledged by the peer's kernel; over a Unix socket, read by the peer. */
static bool zmq_arrived(struct hfd_transport *transport)
{
    const struct hfd_zmq_transport *t = hfd_zmq_transport_of(transport);
    int left = 0;

    if (t->connection < 0 || hfd_zmq_cookie(t->connection) != t->cookie || ioctl(t->connection, SIOCOUTQ, &left) < 0)
        return false;
    return left == 0;
}

static int zmq_fds(struct hfd_transport *transport, int ret_fds[HFD_TRANSPORT_FDS])
{
    memcpy(ret_fds, hfd_zmq_transport_of(transport)->fds, sizeof(int) * HFD_TRANSPORT_FDS);
    return HFD_TRANSPORT_FDS;
}

/* libzmq hands a message of many parts out only when the last one is there, and keeps no count of those before: neither
   high-water mark nor MAXMSGSIZE bounds an endless one. What the kernel received since anything was complete does. A Unix
   socket (ipc) counts nothing: there it is what this process's memory grew by meanwhile, less what it is sending itself. That may be
   another link's doing, but all links of a daemon lead to the same worker. */
static int zmq_check(struct hfd_transport *transport, const char **ret_reason)
{
    struct hfd_zmq_transport *t = hfd_zmq_transport_of(transport);
    bool by_memory;
    uint64_t cost = 0;

    if (t->connection < 0)
        return 0;
    if (hfd_zmq_cookie(t->connection) != t->cookie)
        return 0; /* closed, and its number may be another's by now: the monitor is about to say so */
    by_memory = !bytes_received(t->connection, &cost);
    if (by_memory)
        cost = memory_of(t->zmq);
    if (t->delivered || (by_memory && (!t->accounted || cost < t->accounted))) {
        t->delivered = false;
        t->accounted = cost;
    }
    if (cost <= t->accounted + t->max_bytes + (by_memory ? MEMORY_SLACK : FLOOD_SLACK))
        return 0;
    *ret_reason = by_memory ? "the worker floods: this process grew more than by any legal message, and none complete"
                               : "the worker floods: more bytes than any legal message, and none complete";
    return -EMSGSIZE;
}

static void zmq_close(struct hfd_transport *transport)
{
    struct hfd_zmq_transport *t = hfd_zmq_transport_of(transport);

    t->zmq->msg_close(&t->in);
    free(t);
}

static const struct hfd_transport_ops zmq_ops = {
    .name = "zmq",
    .send = zmq_send,
    .next = hfd_zmq_next,
    .fds = zmq_fds,
    .check = zmq_check,
    .arrived = zmq_arrived,
    .close = zmq_close,
};

static int fd_of(const struct hfd_zmq *z, void *socket, int *ret_fd)
{
    size_t size = sizeof(*ret_fd);

    return z->getsockopt(socket, ZMQ_FD, ret_fd, &size) < 0 ? hfd_zmq_error(z) : 0;
}

int hfd_zmq_open(struct hfd_zmq *zmq, void *dealer, void *monitor, uint64_t max_bytes, struct hfd_transport **ret_transport)
{
    struct hfd_zmq_transport *t = calloc(1, sizeof(*t));
    int r;

    if (!t)
        return -ENOMEM;
    *t = (struct hfd_zmq_transport){
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
