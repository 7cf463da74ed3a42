/* SPDX-License-Identifier: Apache-2.0 */
#include "judge.h"

#include "cursor.h"

#define MOST_BYTES 4096 /* of a reply that can be right */

static struct {
    const struct hfd_loop *l;
    uint32_t t;
    bool sent, answered; /* answered: the first message that names this round is in `reply` */
    unsigned char reply[MOST_BYTES];
    size_t bytes;
    bool whole;
} now;

static void on_round(void)
{
    now.sent = true;
    now.answered = false;
}

static void on_message(const uint8_t *data, size_t bytes)
{
    struct hw_header h;

    if (!now.sent || now.answered || bytes < sizeof(h))
        return;
    memcpy(&h, data, sizeof(h));
    if (h.magic != HW_MAGIC || h.version != HW_VERSION || h.type != HW_REPLY || h.session != now.l->config.session ||
        h.round != now.t || h.body_bytes != bytes - sizeof(h))
        return;
    now.answered = true;
    now.whole = !fake.dealer.in_message;
    now.bytes = bytes;
    memcpy(now.reply, data, bytes < MOST_BYTES ? bytes : MOST_BYTES);
}

static int64_t id_of(const unsigned char *ids, size_t i)
{
    int64_t id;

    memcpy(&id, ids + i * sizeof(id), sizeof(id));
    return id;
}

/* HF_OK, HF_REFUSED or HF_BAD_REPLY. */
static enum hf_verdict verdict_of_reply(void)
{
    const struct hf_geometry *g = &now.l->region.geometry;
    uint64_t n_requests = now.l->wire.round.n_requests, n_ids = n_requests * g->drafts;
    uint64_t bytes = sizeof(struct hw_header) + sizeof(struct hw_reply) + n_ids * 8 + n_requests * g->extra_bytes;
    struct hw_reply reply;

    if (!now.whole || now.bytes < sizeof(struct hw_header) + sizeof(reply) || now.bytes > MOST_BYTES)
        return HF_BAD_REPLY;
    memcpy(&reply, now.reply + sizeof(struct hw_header), sizeof(reply));
    if (reply.status != HW_STATUS_OK)
        return reply.status < HW_STATUS_MAX && !reply.n_requests && !reply.drafts && !reply.extra_bytes &&
                       now.bytes == sizeof(struct hw_header) + sizeof(reply)
                   ? HF_REFUSED
                   : HF_BAD_REPLY;
    if (reply.n_requests != n_requests || reply.drafts != g->drafts || reply.extra_bytes != g->extra_bytes || now.bytes != bytes)
        return HF_BAD_REPLY;
    for (uint64_t i = 0; i < n_ids; i++) {
        int64_t id = id_of(now.reply + sizeof(struct hw_header) + sizeof(reply), i);

        if (id < 0 || id >= (int64_t)g->vocab)
            return HF_BAD_REPLY;
    }
    return HF_OK;
}

void judge_begin(const struct hfd_loop *l, uint32_t t)
{
    now.l = l;
    now.t = t;
    now.sent = now.answered = false;
    fake.on_message = on_message;
    fake.on_round = on_round;
}

static void judge_ids(const struct hfd_loop *l, uint32_t t, bool ok)
{
    const struct hf_geometry *g = &l->region.geometry;
    const unsigned char *area = hf_reply_of(&l->region, t) + l->region.layout.reply_ids;
    const unsigned char *sent = now.reply + sizeof(struct hw_header) + sizeof(struct hw_reply);
    size_t n_ids = (size_t)l->wire.round.n_requests * g->drafts;

    for (size_t i = 0; i < (size_t)g->max_requests * g->drafts; i++)
        MUST(id_of(area, i) >= 0 && id_of(area, i) < (int64_t)g->vocab);
    if (!ok)
        return;
    MUST(memcmp(area, sent, n_ids * 8) == 0);
    MUST(memcmp(hf_reply_of(&l->region, t) + l->region.layout.reply_extra, sent + n_ids * 8,
                (size_t)l->wire.round.n_requests * g->extra_bytes) == 0);
}

void judge_end(const struct hfd_loop *l, uint32_t t)
{
    int verdict = hf_verdict_load(&l->region, t);
    enum hf_verdict meant = l->flight.verdict;

    now.sent = false;
    fake.on_message = NULL;
    fake.on_round = NULL;
    MUST(l->end == HFD_END_NOT && l->done == t);
    MUST(hf_word_load(&l->region, HF_WORD_RETIRED) == t && hf_word_load(&l->region, HF_WORD_RELEASED) == t);
    MUST(verdict > HF_OPEN && verdict < HF_VERDICT_MAX);
    /* flight.verdict is what an answer brought. */
    MUST(meant == HF_OPEN || now.answered);
    MUST(meant == HF_OPEN || meant == verdict_of_reply());
    MUST(verdict != HF_OK || l->wire.context_only || meant == HF_OK);
    judge_ids(l, t, meant == HF_OK);
}

static volatile unsigned read_sum; /* every byte of a body is read: the sanitizer looks */

void judge_event(const struct hfd_event *event)
{
    const unsigned char *body = event->body;
    unsigned sum = 0;

    MUST(event->kind > HFD_EVENT_NONE && event->kind < HFD_EVENT_MAX);
    MUST(event->body_bytes <= HW_MAX_CONTROL_BYTES && (body || !event->body_bytes));
    for (uint32_t i = 0; i < event->body_bytes; i++)
        sum += body[i];
    read_sum = sum;
    MUST(event->reason == NULL || event->reason[0]);
}

void judge_counters(const struct hfd_loop *l)
{
    struct hfd_counters counters;
    uint64_t rounds = 0, dropped = 0;

    hfd_loop_counters(l, &counters);
    for (int i = 0; i < HF_VERDICT_MAX; i++)
        rounds += counters.rounds[i];
    for (int i = 0; i < HFD_DROP_MAX; i++)
        dropped += counters.dropped[i];
    MUST(rounds == (uint32_t)(l->done - l->config.base));
    MUST(dropped <= counters.messages_in);
    MUST(counters.link_downs <= counters.link_ups && counters.links_returned <= counters.links_taken);
    MUST(counters.pongs <= counters.pings);
}
