/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What zmqlib.h calls, without sockets: a DEALER and its monitor are two queues of parts, filled by the fuzzer. Every part
 * that is handed out is a heap block of exactly its size, unaligned, so that the sanitizer sees a read past its end.
 */
#ifndef FAKEZMQ_H
#define FAKEZMQ_H

#include "zmqlib.h"

#define FAKE_PARTS 4096 /* of one queue */

struct fake_part {
    const uint8_t *data; /* must stay until it is handed out */
    size_t bytes;
    bool more;
    int error; /* not 0: the receive fails so, once */
};

struct fake_queue {
    struct fake_part part[FAKE_PARTS];
    size_t n, taken;
    bool in_message; /* parts of the message that was handed out last are still there */
};

struct fake_zmq {
    struct fake_queue dealer, monitor, later; /* later: comes at the DEALER once a ROUND was sent */
    uint32_t refused_sends;                   /* so many sends fail with EAGAIN */
    bool broken_sends;                        /* all fail with ETERM */
    uint64_t kernel_bytes;                    /* what TCP_INFO says */
    size_t live;                              /* messages that hold memory */
    /* The first part of what the DEALER handed out, and how many parts followed it: since the last ROUND was sent. */
    void (*on_message)(const uint8_t *data, size_t bytes);
    void (*on_round)(void);
};

extern struct fake_zmq fake;
extern struct hfd_zmq fake_library;

void fake_reset(void);
/* False: the queue is full. */
bool fake_put(struct fake_queue *q, const uint8_t *data, size_t bytes, bool more, int error);
size_t fake_waiting(const struct fake_queue *q);

#endif
