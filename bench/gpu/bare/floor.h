/* SPDX-License-Identifier: Apache-2.0 */
/* The rounds of floor.c: what one enqueues. */
#ifndef BENCH_FLOOR_H
#define BENCH_FLOOR_H

#include "cu.h"

#define SOURCES 3
#define ROW_BYTES 30720
#define WIDTH (ROW_BYTES / SOURCES)
#define ROWS 6 /* of a request: k + 1 */
#define DRAFTS 5
#define MAX_REQUESTS 16
#define STATE_SLOTS 64
#define MAX_ROWS (ROWS * MAX_REQUESTS)

struct shared {
    struct word active, gathered, released, consumed;
    _Atomic uint64_t pause_ns; /* the responder waits so long before it releases */
    _Alignas(4096) unsigned char header[4][STATE_SLOTS * 8];
    int64_t reply[MAX_REQUESTS * DRAFTS];
    int64_t positions[MAX_ROWS];
    int32_t tokens[MAX_ROWS];
    unsigned char rows[MAX_ROWS * ROW_BYTES];
};

struct floor {
    struct cu cu;
    struct shared *shared;
    CUstream stream;
    CUevent spinning, blocking;
    CUdeviceptr headers, positions, tokens, source[SOURCES], drafts;
    uint32_t round, requests;
};

/* Enqueues round t. */
typedef void (*round_fn)(struct floor *f, uint32_t t);
round_fn floor_round(const char *name); /* NULL: there is none of that name */
void floor_empty(struct floor *f, uint32_t t);

#endif
