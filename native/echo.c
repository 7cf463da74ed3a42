/* SPDX-License-Identifier: Apache-2.0 */
#include "echo.h"

#include <string.h>

static uint64_t mix(uint64_t sum, uint64_t word)
{
    sum = (sum + word) * UINT64_C(0x9E3779B97F4A7C15);
    return sum ^ sum >> 29;
}

uint64_t hf_echo_row(uint64_t sum, int64_t position, int32_t token, const void *row, uint32_t row_bytes)
{
    const unsigned char *at = row;
    uint64_t word = 0;

    sum = mix(mix(sum, (uint64_t)position), (uint32_t)token);
    if (row_bytes < sizeof(word)) {
        memcpy(&word, at, row_bytes);
        return mix(sum, word);
    }
    for (uint32_t i = 0; i + sizeof(word) < row_bytes; i += HF_ECHO_STRIDE) {
        memcpy(&word, at + i, sizeof(word));
        sum = mix(sum, word);
    }
    memcpy(&word, at + row_bytes - sizeof(word), sizeof(word));
    return mix(sum, word);
}

int64_t hf_echo_id(uint64_t sum, int64_t anchor, uint32_t i, uint32_t vocab)
{
    return (int64_t)(mix(mix(sum, (uint64_t)anchor), i) % vocab);
}
