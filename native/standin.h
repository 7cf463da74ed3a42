/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the rehearsal's engine stand-in: what a GPU would run between two rounds, called by the soft stream's thread.
 * They keep to what a real engine's kernels know: positions, drafts and accepted counts exist here before any CPU has
 * seen them, so the engine thread can launch step n + 1 without the results of step n.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <stdint.h>

/* cffi:begin */
#define ST_MAX_DRAFTS 64
#define ST_SOURCES 3 /* a row is the hidden states of three target layers, side by side, as DSpark's are */

/* Item flags. */
#define ST_PREFILL 1    /* its rows are prompt tokens */
#define ST_LAST_CHUNK 2 /* of the prompt: the step samples the first token */
#define ST_DRAFT 4      /* drafts are asked for its next step */

/* One request's state on the device, by request slot. */
struct st_slot {
    uint64_t uid;         /* whose it is; row bytes depend on it */
    int64_t text_at;      /* where its text starts in the device's text */
    int64_t text_tokens;  /* its length; what follows counts as token 0 */
    int64_t position;     /* of its next row */
    int64_t last;         /* the token there: sampled, not yet run */
    uint64_t drafted;     /* 0: its drafts are none, the last step made no round */
    int64_t drafts[ST_MAX_DRAFTS];
};

/* One request of a step, in batch order, as the scheduler knows it. */
struct st_item {
    uint64_t uid;
    int64_t text_at, text_tokens;
    int64_t first;        /* position of a prefill chunk's first row; a decode's is on the device */
    uint32_t slot;
    uint32_t rows;
    uint32_t first_row;   /* within the batch */
    uint32_t flags;       /* ST_* */
};

/* What a step did for one request. sampled ... tokens are there once st_verify ran, drafts once st_take did. */
struct st_result {
    int64_t position;     /* of its first row */
    int32_t sampled;      /* tokens emitted: accepted drafts and one more, 0 within a prompt */
    int32_t rejected;
    int64_t tokens[ST_MAX_DRAFTS + 1]; /* emitted: ids of accepted drafts, then one of the text */
    int64_t drafts[ST_MAX_DRAFTS];     /* for the next step, as the reply left them in device memory */
};

/* "Device memory". Arrays are those of struct hfe_batch. */
struct st_device {
    uint64_t seed;
    uint32_t drafts, row_bytes, n_sources, vocab, max_requests, state_slots;
    uint32_t simulate;    /* 1: accept a pseudo-random number of drafts, as if they had been the text's tokens */
    uint32_t reserved;
    uint64_t illegal;     /* draft ids outside [0, vocab) that reached the device: must stay 0 */
    const int32_t *text;
    struct st_slot *slots;
    unsigned char *sources[ST_SOURCES]; /* [batch rows][row_bytes / n_sources] */
    int64_t *positions;
    int32_t *tokens;
    int32_t *num_sampled;
    int32_t *num_rejected;
    int64_t *last_sampled;
    int32_t *next_prefill;
    int64_t *drafts_out;
};

/* Argument of the kernels: one step. Stays as it is until the stream is past it. */
struct st_step {
    struct st_device *device;
    uint32_t n_items;
    uint32_t drafting;    /* set before st_take is enqueued: 0 = no round, the drafts are all 0 */
    struct st_item *items;
    struct st_result *results;
    uint64_t taken_ns;    /* CLOCK_MONOTONIC when st_take began: the round is over for the stream */
};

/* Verifies the drafts against the text, emits, and writes the round's GPU header. struct st_step. */
void st_verify(void *step);
/* Writes the step's rows, rejected ones included. struct st_step. */
void st_rows(void *step);
/* Takes drafts_out into the requests' state. struct st_step. */
void st_take(void *step);
/* *to := CLOCK_MONOTONIC. uint64_t. */
void st_stamp(void *to);
/* Rows as st_rows writes them, whole and one after the other, for whoever checks them. */
void st_fill_rows(uint64_t seed, uint64_t uid, uint32_t row_bytes, uint32_t n, const int64_t *positions, const int32_t *tokens,
                  unsigned char *to);
/* The calling process gets this signal when its parent dies. Returns 0 or -errno. */
int st_die_with_parent(int signal);
/* cffi:end */

#endif
