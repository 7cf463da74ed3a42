/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Between a slot and the network: a round's headers are taken into private memory and checked, its valid rows put
 * together as a ROUND; a REPLY is checked where it lies, in private memory, before anything of it is stored. The engine
 * is trusted no more than the worker: no count, index or offset of theirs is used before it was checked.
 */
#ifndef ROUNDWIRE_H
#define ROUNDWIRE_H

#include "hostflag.h"
#include "transport.h"
#include "wire.h"

struct hfd_wire {
    const struct hf_region *region;
    uint64_t session;
    /* of the round in hand */
    struct hf_round round;
    struct hf_request *requests; /* [max_requests] */
    uint32_t valid_rows;
    bool context_only;
    bool empty; /* nobody in it: no ROUND is made of it */
    struct hfd_outgoing message;
    /* what message points to */
    unsigned char *head;
    size_t head_capacity;
    struct hfd_piece *pieces; /* [max_requests] */
};

enum hfd_reply {
    HFD_REPLY_OK,
    HFD_REPLY_UNKNOWN_SESSION, /* the worker does not know the session */
    HFD_REPLY_REFUSED,         /* another status than OK */
    HFD_REPLY_BAD,             /* it does not fit the round */
};

/* Memory for the largest round the region can hold. Returns 0 or -ENOMEM. region must outlive it. */
int hfd_wire_init(struct hfd_wire *w, const struct hf_region *region, uint64_t session);
void hfd_wire_free(struct hfd_wire *w);

/* The CPU header of round t, once submitted. Returns NULL, or what no sound engine writes (a static text). */
const char *hfd_wire_take(struct hfd_wire *w, uint32_t t);
/* The ROUND of the header taken, once gathered, into w->message. It points into the ring. Returns NULL, or what does not
   fit in what the GPU wrote (a static text). */
const char *hfd_wire_build(struct hfd_wire *w);

/* A message's header. False: too short, another magic or version, or body_bytes is not what follows. */
bool hfd_wire_header(const void *data, size_t bytes, struct hw_header *ret_header);
/* The header of a message of another version, of which only type and session mean anything. */
bool hfd_wire_foreign_header(const void *data, size_t bytes, struct hw_header *ret_header);
/* A message without body, or the head of one with: PING. */
struct hw_header hfd_wire_control(uint64_t session, enum hw_type type, uint32_t number);

/* The body of a REPLY to the round in hand. */
enum hfd_reply hfd_wire_check_reply(const struct hfd_wire *w, const void *body, size_t bytes);
/* Stores the ids, and the extra bytes, of a reply that was checked into the reply area of the round in hand. */
void hfd_wire_store_reply(const struct hfd_wire *w, const void *body);
/* Stores the timing into that area. */
void hfd_wire_store_timing(const struct hfd_wire *w, const struct hf_timing *timing);

#endif
