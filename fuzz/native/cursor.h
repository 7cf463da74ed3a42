/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzzer's input, taken from the front. Past its end there are zeros, so that every input is one. */
#ifndef CURSOR_H
#define CURSOR_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cursor {
    const uint8_t *at, *end;
};

static inline size_t cursor_left(const struct cursor *c)
{
    return (size_t)(c->end - c->at);
}

/* Up to `bytes` of the input itself. */
static inline const uint8_t *cursor_bytes(struct cursor *c, size_t bytes, size_t *ret_bytes)
{
    const uint8_t *at = c->at;

    *ret_bytes = bytes < cursor_left(c) ? bytes : cursor_left(c);
    c->at += *ret_bytes;
    return at;
}

static inline uint64_t cursor_number(struct cursor *c, size_t bytes)
{
    uint64_t number = 0;
    size_t got;
    const uint8_t *at = cursor_bytes(c, bytes, &got);

    if (got)
        memcpy(&number, at, got);
    return number;
}

static inline uint8_t cursor_u8(struct cursor *c)
{
    return (uint8_t)cursor_number(c, 1);
}

static inline uint16_t cursor_u16(struct cursor *c)
{
    return (uint16_t)cursor_number(c, 2);
}

static inline uint32_t cursor_u32(struct cursor *c)
{
    return (uint32_t)cursor_number(c, 4);
}

/* What must hold whatever the input is: else the input is a finding. */
#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                             \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#endif
