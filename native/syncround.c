/* SPDX-License-Identifier: Apache-2.0 */
/* A round that the engine thread waits for: same headers, words and region, but the CPU stands in for the stream's writes and waits. */
#include "gather.h"

#include <errno.h>

/* Round t is released, or past its deadline and released here: with a watchdog that does not run this must end all the same. */
static void await_release(const struct hfe_session *e, uint32_t t)
{
    const struct hf_region *r = &e->region;

    if (hf_released_wait(r, t, e->config.deadline_ns + 2 * e->config.tick_ns) == 0)
        return;
    /* In order, and decided before it is released ("verdict, released"). From the engine's own word on: released is the daemon's,
       too, and holds whatever it wrote. */
    for (uint32_t i = atomic_load_explicit(&r->engine->consumed.value, memory_order_relaxed); hf_past(t, i) > 0; i++)
        hf_decide(r, i + 1, HF_EXPIRED);
    hf_release(r, t);
}

static int synchronize(const struct hfe_session *e)
{
    return e->stream.synchronize(e->stream.context, e->config.stream_limit_ns);
}

int hfe_sync_round(struct hfe_session *e, const struct hfe_batch *b, const struct hfe_planned *round, uint32_t t)
{
    int r;

    r = hfe_gather_rows(e, b, round, t);
    if (r < 0)
        return r;
    r = synchronize(e);
    if (r < 0)
        return r;
    *hf_gathered_ns_of(&e->region, t) = hf_now_ns();
    /* Release: what the stream copied is seen by whoever sees the round gathered ("rows, gathered"). */
    atomic_store_explicit(&e->region.engine->gathered.value, t, memory_order_release);
    hf_doorbell_ring(&e->region, t);
    if (!(round->flags & HF_ROUND_CONTEXT_ONLY)) {
        await_release(e, t);
        r = hfe_gather_reply(e, b, t);
        if (r < 0)
            return r;
        r = synchronize(e);
        if (r < 0)
            return r;
    }
    /* Release: the reply is read before its slot can be another round's ("reply copied, consumed"). */
    atomic_store_explicit(&e->region.engine->consumed.value, t, memory_order_release);
    return 0;
}

int hfe_flush_sync(struct hfe_session *e, struct hfe_ticket *ret_ticket)
{
    const struct hfe_batch nothing = {0};

    return hfe_submit_sync(e, &nothing, ret_ticket);
}

int hfe_submit_sync(struct hfe_session *e, const struct hfe_batch *b, struct hfe_ticket *ret_ticket)
{
    int r;

    if (!e->stream.synchronize || e->config.stream_limit_ns == 0)
        return -ENOTSUP;
    e->sync = true;
    r = hfe_submit(e, b, ret_ticket);
    e->sync = false;
    return r;
}
