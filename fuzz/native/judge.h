/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of a round loop, whatever a worker sends: written from docs/CONTRACT.md, not from the loop. */
#ifndef JUDGE_H
#define JUDGE_H

#include "fakezmq.h"
#include "loopstate.h"

/* Before and after round t is run. */
void judge_begin(const struct hfd_loop *l, uint32_t t);
void judge_end(const struct hfd_loop *l, uint32_t t);
void judge_event(const struct hfd_event *event);
void judge_counters(const struct hfd_loop *l);

#endif
