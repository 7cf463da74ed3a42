/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport: how the round loop's messages reach the worker. ZMQ is one, RDMA another. From hfd_loop_link on, the
 * loop's thread alone calls it, until the loop closes it. Nothing here blocks, and nothing here keeps a pointer that it
 * was given: when send returns, the rows it was given may be refilled.
 */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HFD_TRANSPORT_FDS 2

/* A piece of the second part of a message: rows that lie together in the ring. */
struct hfd_piece {
    const void *data;
    size_t bytes;
};

/* What goes out: a head in private memory, and for a ROUND the rows as a second part. */
struct hfd_outgoing {
    const void *head;
    size_t head_bytes;
    const struct hfd_piece *pieces;
    uint32_t n_pieces;
    bool two_parts; /* a second part is sent, be it empty */
    size_t rows_bytes; /* the sum of the pieces */
};

enum hfd_incoming_kind {
    HFD_INCOMING_NONE,    /* nothing there */
    HFD_INCOMING_MESSAGE, /* data, bytes: valid until the next call of the transport */
    HFD_INCOMING_UP,      /* connected; a new connection, the peer knows nothing */
    HFD_INCOMING_DOWN,    /* the connection is gone; the transport reconnects by itself. reason */
};

struct hfd_incoming {
    enum hfd_incoming_kind kind;
    const void *data;    /* the first part; not aligned */
    size_t bytes;
    uint32_t more_parts; /* parts after the first: read and thrown away */
    const char *reason;  /* static text */
    bool barred;         /* DOWN before it was UP: the peer's door did not open, or it is no peer for us */
};

struct hfd_transport;

struct hfd_transport_ops {
    const char *name;
    /* 0: taken. -EAGAIN: it would block. Any other -errno: the link is over, close it. */
    int (*send)(struct hfd_transport *t, const struct hfd_outgoing *m);
    /* 0, and what there is in *ret_in. -errno: the link is over, close it; ret_in->reason says why. */
    int (*next)(struct hfd_transport *t, struct hfd_incoming *ret_in);
    /* fds that become readable when next has something again. Only after next said HFD_INCOMING_NONE. Returns how many. */
    int (*fds)(struct hfd_transport *t, int ret_fds[HFD_TRANSPORT_FDS]);
    /* Called at least once in HF_BEAT_NS: 0, or -errno and *ret_reason where the peer's unfinished message costs more
       memory than any legal one: the link is over. */
    int (*check)(struct hfd_transport *t, const char **ret_reason);
    /* Whether everything that was sent has reached the peer's machine: one that does not answer is slow then, and not gone.
       May be NULL: nobody knows, and it counts as yes. */
    bool (*arrived)(struct hfd_transport *t);
    /* Frees t. What it was made from (sockets) is not closed: it is the giver's again. */
    void (*close)(struct hfd_transport *t);
};

struct hfd_transport {
    const struct hfd_transport_ops *ops;
};

#endif
