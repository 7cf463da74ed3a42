/* SPDX-License-Identifier: Apache-2.0 */
/* What Python needs of the shared part beyond the structs: regions by fd, and names for the enums. */
#ifndef SHARED_H
#define SHARED_H

#include "hostflag.h"

/* cffi:begin */
const char *hf_geometry_fault(const struct hf_geometry *g);
int hf_layout_of(const struct hf_geometry *g, struct hf_layout *ret_layout);
uint64_t hf_layout_hash(void);
void hf_ring_span_of(const struct hf_geometry *g, uint32_t n_rows, struct hf_ring_span *ret_span);
int hf_region_create(const struct hf_geometry *g);
int hf_region_check(int fd, struct hf_header *ret_header, const char **ret_reason);

/* A read-only look at a checked region, for status, dumps and tests. */
struct hfp_view;
int hfp_view_open(int fd, struct hfp_view **ret_view, const char **ret_reason);
uint32_t hfp_view_word(const struct hfp_view *v, int id);
uint64_t hfp_view_verdict(const struct hfp_view *v, uint32_t slot);
/* Copies the newest rounds of the flight recorder, at most n of them, the oldest first. Returns how many: those that the
   engine overwrites meanwhile are left out. */
uint32_t hfp_view_records(const struct hfp_view *v, uint32_t n, struct hf_record *ret_records);
/* Sets every counter of a region that nobody uses yet to base: its first round is base + 1. */
int hfp_region_rebase(int fd, uint32_t base, const char **ret_reason);
void hfp_view_close(struct hfp_view *v);
/* cffi:end */

#endif
