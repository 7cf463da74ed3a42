/* SPDX-License-Identifier: Apache-2.0 */
/* A planned round, put together request by request and piece by piece. */
#ifndef PLANROUND_H
#define PLANROUND_H

#include "plan.h"

/* Ring bytes of so many rows; 0 for none. */
uint64_t hfe_plan_bytes(const struct hfe_plan *p, uint32_t rows);
/* How many rows fit so many bytes. */
uint32_t hfe_plan_rows_in(const struct hfe_plan *p, uint64_t bytes);
/* Rows that prefill may take now in one piece, such that `after` bytes and then a full decode step still fit. */
uint32_t hfe_plan_prefill_room(const struct hfe_plan *p, uint64_t after);
void hfe_plan_begin(struct hfe_plan *p, uint32_t flags, uint32_t main);
struct hf_request *hfe_plan_add_request(struct hfe_plan *p, uint32_t request_slot, uint32_t generation, uint32_t flags);
/* The entry of a key in a context-only round: the last one if it is that key's, else a new one. NULL: it has to be another
   round, since the table is full or the key stands further up, and a request's rows lie together. */
struct hf_request *hfe_plan_entry_for(struct hfe_plan *p, uint32_t request_slot, uint32_t generation);
void hfe_plan_add_rows(struct hfe_plan *p, uint32_t from, uint32_t rows, uint32_t backlog);
/* Takes the round's piece of the ring, which is known to fit. */
void hfe_plan_end(struct hfe_plan *p);
/* The same for a context-only round, if it has rows. Whether it has. */
bool hfe_plan_end_context(struct hfe_plan *p);

#endif
