/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libzmq as the ZMQ transport calls it: pointers to the functions of the library that is loaded already. zmq.h is not
 * needed to build; what stands here is libzmq 4's binary interface.
 */
#ifndef ZMQLIB_H
#define ZMQLIB_H

#include "zmqtransport.h"

#include <stdatomic.h>

/* zmq_msg_t: 64 bytes, pointer-aligned. */
union hfd_zmq_message {
    unsigned char bytes[64];
    void *align;
};

struct hfd_zmq {
    void *library;
    int version;
    int statm; /* /proc/self/statm; -1: not there */
    int (*msg_init)(union hfd_zmq_message *);
    int (*msg_init_size)(union hfd_zmq_message *, size_t);
    int (*msg_init_data)(union hfd_zmq_message *, void *data, size_t, void (*give_back)(void *data, void *hint), void *hint);
    void *(*msg_data)(union hfd_zmq_message *);
    size_t (*msg_size)(const union hfd_zmq_message *);
    int (*msg_more)(const union hfd_zmq_message *);
    int (*msg_close)(union hfd_zmq_message *);
    int (*msg_send)(union hfd_zmq_message *, void *socket, int flags);
    int (*msg_recv)(union hfd_zmq_message *, void *socket, int flags);
    int (*getsockopt)(void *socket, int option, void *value, size_t *size);
    int (*error)(void);
    void (*get_version)(int *major, int *minor, int *patch);
    _Atomic uint64_t outgoing; /* bytes of rows that libzmq was given, by all links, and has not sent yet */
};

#define ZMQ_DONTWAIT 1

/* A transport on a DEALER and its monitor. */
struct hfd_zmq_transport {
    struct hfd_transport base;
    struct hfd_zmq *zmq;
    void *dealer, *monitor;
    int fds[HFD_TRANSPORT_FDS];
    uint64_t max_bytes;
    union hfd_zmq_message in; /* what next handed out */
    uint32_t in_a_row;        /* messages since the last look at the monitor */
    bool handshaking;         /* connected, and neither good nor failed yet */
    bool delivered;           /* a whole message came since the last check */
    int connection;           /* the kernel's socket under the DEALER, only ever asked for its TCP_INFO; -1: unknown */
    uint64_t cookie;          /* the kernel's own name of that socket; 0: it has none */
    uint64_t accounted;       /* what it had cost at the check after the last whole message */
};

static inline struct hfd_zmq_transport *hfd_zmq_transport_of(struct hfd_transport *t)
{
    return (struct hfd_zmq_transport *)t;
}

/* The kernel's name of a socket, which no other ever gets; 0 where it is closed, or sockets have none here. */
uint64_t hfd_zmq_cookie(int connection);
/* The calling thread's last error of libzmq as -errno; -ESHUTDOWN where the context was terminated. */
int hfd_zmq_error(const struct hfd_zmq *z);
/* A static text. */
const char *hfd_zmq_error_reason(int error);
/* next of the transport (zmqincoming.c). */
int hfd_zmq_next(struct hfd_transport *transport, struct hfd_incoming *ret_in);

#endif
