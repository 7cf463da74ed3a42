/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The circuit breaker of one loop: a worker that fails round after round is left alone for a while, so that the engine does
 * not wait out the network timeout at each. CLOSED -> OPEN after so many failures in a row -> HALF_OPEN once it has cooled
 * down: one round goes through -> CLOSED where it was answered, else OPEN again, and for longer. A connection that is lost opens
 * it as well, until a worker has opened the session again.
 */
#ifndef BREAKER_H
#define BREAKER_H

#include "roundloop.h"

#define HFD_BREAKER_MOST_NS UINT64_C(4000000000) /* the longest cool-down */

struct hfd_breaker {
    enum hfd_breaker_state state;
    uint32_t failures;  /* in a row */
    uint64_t cool_ns;   /* how long it cools down where it opens next */
    uint64_t until_ns;  /* OPEN: cool from then on */
    bool lost;          /* OPEN for want of a connection only */
    uint64_t worker;    /* hash of what the worker said of itself; 0: none has been met */
};

struct hfd_loop;

void hfd_breaker_init(struct hfd_loop *l);
/* Whether the round in hand may go to the worker. Where it is the probe, the state is HALF_OPEN from here on. */
bool hfd_breaker_admits(struct hfd_loop *l);
/* What became of a round that was admitted. */
void hfd_breaker_book(struct hfd_loop *l, enum hf_verdict verdict);
/* The connection of a link that was up is lost. */
void hfd_breaker_lose(struct hfd_loop *l);
/* A worker opened the session; body: of its OPENED. Another one than before begins without failures. */
void hfd_breaker_meet(struct hfd_loop *l, const unsigned char *body, uint32_t bytes);

#endif
