/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages on a DEALER that pyzmq created, through the functions of the very libzmq that pyzmq loaded: two libzmqs in one
 * process could not touch each other's sockets.
 */
#ifndef ZMQTRANSPORT_H
#define ZMQTRANSPORT_H

#include "transport.h"

/* cffi:begin */
struct hfd_zmq;

/* Finds libzmq's functions. path: the shared object of pyzmq's backend (zmq.backend.cython._zmq.__file__), or a libzmq;
   it must be loaded already, nothing is loaded here. Returns 0 or -errno; *ret_reason is a static text.
   One hfd_zmq serves any number of transports; free it after the last of them. */
int hfd_zmq_load(const char *path, struct hfd_zmq **ret_zmq, const char **ret_reason);
/* major * 10000 + minor * 100 + patch. */
int hfd_zmq_version(const struct hfd_zmq *zmq);
void hfd_zmq_free(struct hfd_zmq *zmq);

/* A transport on a DEALER and the PAIR that reads its monitor (Socket.underlying of each; the monitor opened before
   connect, with at least HFD_ZMQ_EVENTS). The giver sets IMMEDIATE, SNDHWM, RCVHWM, MAXMSGSIZE, LINGER and security.
   max_bytes: the largest message a worker may send. Both pointers must stay valid, and untouched by anybody else, from
   hfd_loop_link until HFD_EVENT_LINK_RETURNED. Returns 0 or -errno. */
int hfd_zmq_open(struct hfd_zmq *zmq, void *dealer, void *monitor, uint64_t max_bytes, struct hfd_transport **ret_transport);
/* Frees a transport that no loop took (hfd_loop_link failed). Its sockets stay the giver's. */
void hfd_zmq_discard(struct hfd_transport *transport);

/* Events the monitor must report: connected, disconnected, monitor stopped, handshake succeeded and its three failures. */
#define HFD_ZMQ_EVENTS 0x7e01
/* cffi:end */

#endif
