/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon answers in an echo session: ids that follow from the rows it found, so that the engine's side can tell whether it
 * found those that were meant. Of each row a word of every 4 KiB and the last one count.
 */
#ifndef ECHO_H
#define ECHO_H

#include <stdint.h>

/* cffi:begin */
#define HF_ECHO_STRIDE 4096
/* Goes on from sum (0 before a request's first valid row) with the next one. */
uint64_t hf_echo_row(uint64_t sum, int64_t position, int32_t token, const void *row, uint32_t row_bytes);
/* Draft i of a request whose rows came to sum, behind its anchor (-1: none). In [0, vocab). */
int64_t hf_echo_id(uint64_t sum, int64_t anchor, uint32_t i, uint32_t vocab);
/* cffi:end */

#endif
