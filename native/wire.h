/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network protocol between daemon and worker, as bytes. docs/CONTRACT.md is its text; this file its only numbers.
 * Little-endian, no padding that is not named.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdint.h>

/* cffi:begin */
#define HW_MAGIC 877024068      /* "DSF4" as a little-endian u32 */
#define HW_VERSION 1
#define HW_MAX_CONTROL_BYTES 65536 /* body of OPEN, OPENED, REFUSED, CLOSE, PING, PONG */
#define HW_MAX_PART_BYTES 67108864 /* of any message: what is longer, a worker's socket refuses with its connection */

enum hw_type {
    HW_OPEN = 1, HW_OPENED, HW_REFUSED, HW_ROUND, HW_REPLY, HW_CLOSE, HW_PING, HW_PONG, HW_TYPE_MAX
};

/* First bytes of every message. */
struct hw_header {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint64_t session;
    uint32_t round;      /* ROUND, REPLY: t. PING, PONG: a number to be given back. Else 0 */
    uint32_t body_bytes; /* that follow in this part */
};

#define HW_ROUND_CONTEXT_ONLY 1
#define HW_REQUEST_DRAFT 1

/* ROUND, part 1 after the header: this, hw_request[n_requests], int64 positions[n_rows], int32 tokens[n_rows].
   Part 2: n_rows * row_bytes bytes. Rows are in request order; only valid rows are sent. */
struct hw_round {
    uint32_t n_requests;
    uint32_t n_rows;
    uint32_t row_bytes;
    uint32_t drafts;
    uint32_t flags;
    uint32_t reserved;
};

struct hw_request {
    uint32_t request_slot;
    uint32_t generation;
    uint32_t rows;
    uint32_t flags;
    int64_t anchor; /* the token that follows the last row: drafts follow it. -1 where no drafts are wanted */
};

enum hw_status { HW_STATUS_OK, HW_STATUS_UNKNOWN_SESSION, HW_STATUS_BAD_ROUND, HW_STATUS_BUSY, HW_STATUS_FAILED, HW_STATUS_MAX };

/* REPLY, one part after the header: this, int64 ids[n_requests][drafts], then extra[n_requests][extra_bytes].
   Where status is not HW_STATUS_OK, n_requests is 0 and nothing follows. */
struct hw_reply {
    uint32_t status;
    uint32_t n_requests;
    uint32_t drafts;
    uint32_t extra_bytes;
};
/* cffi:end */

#endif
