/* SPDX-License-Identifier: Apache-2.0 */
#include "standin.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

static uint64_t mix(uint64_t v)
{
    v = (v ^ (v >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    v = (v ^ (v >> 27)) * UINT64_C(0x94d049bb133111eb);
    return v ^ (v >> 31);
}

static uint64_t row_key(uint64_t seed, uint64_t uid, int64_t position, int64_t token)
{
    return mix(mix(mix(seed + GOLDEN) ^ uid) ^ ((uint64_t)position << 20) ^ (uint64_t)token);
}

/* Bytes [from, from + n) of a row; from is a multiple of 8. One multiplication a word: a row costs about what copying it does. */
static void row_piece(uint64_t key, uint64_t from, uint64_t n, unsigned char *to)
{
    uint64_t words = n / 8;
    uint64_t counter = key + from / 8 * GOLDEN;

    for (uint64_t i = 0; i < words; i++, counter += GOLDEN) {
        uint64_t v = (counter ^ (counter >> 32)) * UINT64_C(0xd6e8feb86659fd93);
        v ^= v >> 32;
        memcpy(to + i * 8, &v, 8);
    }
    if (n % 8) {
        uint64_t v = mix(counter);
        memcpy(to + words * 8, &v, n % 8);
    }
}

static int64_t text_of(const struct st_device *d, const struct st_slot *s, int64_t position)
{
    return position < s->text_tokens ? d->text[s->text_at + position] : 0;
}

static void prefill(struct st_device *d, const struct st_item *item, struct st_slot *s, struct st_result *r)
{
    int64_t end = item->first + item->rows;

    s->uid = item->uid;
    s->text_at = item->text_at;
    s->text_tokens = item->text_tokens;
    for (uint32_t i = 0; i < item->rows; i++) {
        d->positions[item->first_row + i] = item->first + i;
        d->tokens[item->first_row + i] = (int32_t)text_of(d, s, item->first + i);
    }
    r->position = item->first;
    r->sampled = item->flags & ST_LAST_CHUNK ? 1 : 0;
    r->rejected = 0;
    s->position = end;
    s->last = text_of(d, s, end);
    s->drafted = 0;
    r->tokens[0] = s->last;
    d->next_prefill[item->slot] = (int32_t)s->last;
}

/* For drafters that guess nothing: rounds carry valid and rejected rows all the same. The tokens are the text's. */
static uint32_t pretend(const struct st_device *d, const struct st_slot *s, uint32_t k, int32_t *tokens)
{
    uint32_t accepted = s->drafted ? (uint32_t)(mix(mix(d->seed ^ s->uid) + (uint64_t)s->position) % (k + 1)) : 0;

    for (uint32_t i = 0; i < accepted; i++)
        tokens[i] = (int32_t)text_of(d, s, s->position + 1 + i);
    return accepted;
}

static void decode(struct st_device *d, const struct st_item *item, struct st_slot *s, struct st_result *r)
{
    uint32_t k = item->rows - 1;
    uint32_t accepted = 0;
    int64_t *positions = d->positions + item->first_row;
    int32_t *tokens = d->tokens + item->first_row;

    positions[0] = s->position;
    tokens[0] = (int32_t)s->last;
    for (uint32_t i = 0; i < k; i++) {
        positions[i + 1] = s->position + 1 + i;
        tokens[i + 1] = (int32_t)s->drafts[i];
    }
    if (d->simulate)
        accepted = pretend(d, s, k, tokens + 1);
    else
        while (accepted < k && s->drafts[accepted] == text_of(d, s, s->position + 1 + accepted))
            accepted++;
    for (uint32_t i = 0; i < accepted; i++)
        r->tokens[i] = tokens[i + 1];
    r->position = s->position;
    r->sampled = (int32_t)accepted + 1;
    r->rejected = (int32_t)(k - accepted);
    s->position += accepted + 1;
    s->last = text_of(d, s, s->position);
    r->tokens[accepted] = s->last;
}

void st_verify(void *argument)
{
    struct st_step *step = argument;
    struct st_device *d = step->device;

    for (uint32_t b = 0; b < step->n_items; b++) {
        const struct st_item *item = &step->items[b];
        struct st_slot *s = &d->slots[item->slot];
        struct st_result *r = &step->results[b];
        if (item->flags & ST_PREFILL)
            prefill(d, item, s, r);
        else
            decode(d, item, s, r);
        d->num_sampled[b] = r->sampled;
        d->num_rejected[b] = r->rejected;
        if (r->sampled > 0)
            d->last_sampled[item->slot] = s->last;
    }
}

void st_rows(void *argument)
{
    struct st_step *step = argument;
    struct st_device *d = step->device;
    uint64_t width = d->row_bytes / d->n_sources;

    for (uint32_t b = 0; b < step->n_items; b++) {
        const struct st_item *item = &step->items[b];
        for (uint64_t row = item->first_row; row < (uint64_t)item->first_row + item->rows; row++) {
            uint64_t key = row_key(d->seed, item->uid, d->positions[row], d->tokens[row]);
            for (uint32_t i = 0; i < d->n_sources; i++)
                row_piece(key, i * width, width, d->sources[i] + row * width);
        }
    }
}

void st_take(void *argument)
{
    struct st_step *step = argument;
    struct st_device *d = step->device;

    st_stamp(&step->taken_ns);
    for (uint32_t b = 0; b < step->n_items; b++) {
        struct st_slot *s = &d->slots[step->items[b].slot];
        if (!(step->items[b].flags & ST_DRAFT))
            continue;
        s->drafted = step->drafting;
        for (uint32_t i = 0; i < d->drafts; i++) {
            int64_t id = step->drafting ? d->drafts_out[(uint64_t)b * d->drafts + i] : 0;
            if (id < 0 || id >= d->vocab)
                d->illegal++;
            s->drafts[i] = id;
            step->results[b].drafts[i] = id;
        }
    }
}

void st_stamp(void *to)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    *(uint64_t *)to = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void st_fill_rows(uint64_t seed, uint64_t uid, uint32_t row_bytes, uint32_t n, const int64_t *positions, const int32_t *tokens,
                  unsigned char *to)
{
    for (uint32_t i = 0; i < n; i++)
        row_piece(row_key(seed, uid, positions[i], tokens[i]), 0, row_bytes, to + (uint64_t)i * row_bytes);
}

int st_die_with_parent(int signal)
{
    return prctl(PR_SET_PDEATHSIG, (unsigned long)signal) ? -errno : 0;
}
