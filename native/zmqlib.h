/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libzmq as the ZMQ transport calls it: pointers to the functions of the library that is loaded already. zmq.h is not
 * needed to build; what stands here is libzmq 4's binary interface.
 */
#ifndef ZMQLIB_H
#define ZMQLIB_H

#include "zmqtransport.h"

/* zmq_msg_t: 64 bytes, pointer-aligned. */
union hfd_zmq_message {
    unsigned char bytes[64];
    void *align;
};

struct hfd_zmq {
    void *library;
    int version;
    int (*msg_init)(union hfd_zmq_message *);
    int (*msg_init_size)(union hfd_zmq_message *, size_t);
    void *(*msg_data)(union hfd_zmq_message *);
    size_t (*msg_size)(const union hfd_zmq_message *);
    int (*msg_more)(const union hfd_zmq_message *);
    int (*msg_close)(union hfd_zmq_message *);
    int (*msg_send)(union hfd_zmq_message *, void *socket, int flags);
    int (*msg_recv)(union hfd_zmq_message *, void *socket, int flags);
    int (*getsockopt)(void *socket, int option, void *value, size_t *size);
    int (*error)(void);
    void (*get_version)(int *major, int *minor, int *patch);
};

#endif
