/* SPDX-License-Identifier: Apache-2.0 */
/* A link that is to come, or to come back: what rounds do meanwhile, and when a worker that refused is asked again. */
#include "loopstate.h"

#define FIRST_REOPEN 16      /* the first OPEN again comes after so small a part of the configured time, each refusal doubles it */
#define LASTED 4             /* a link that was up for so many of these times begins anew */

bool hfd_link_up(const struct hfd_loop *l)
{
    return l->link.state == HFD_LINK_UP && !l->link.condemned;
}

bool hfd_link_coming(const struct hfd_loop *l)
{
    const struct hfd_link *k = &l->link;
    bool on_its_way = k->state == HFD_LINK_CONNECTING || k->state == HFD_LINK_OPENING;

    return k->succeeds && on_its_way && k->transport && !k->condemned;
}

enum hf_verdict hfd_link_verdict(const struct hfd_loop *l)
{
    return l->link.state == HFD_LINK_REFUSED ? HF_REFUSED : HF_DISCONNECTED;
}

enum hf_verdict hfd_link_await(struct hfd_loop *l, uint64_t began_ns)
{
    uint64_t until = began_ns + l->config.network_timeout_ns / 2;

    while (hfd_link_coming(l)) {
        uint64_t now = hf_now_ns();

        if (now >= until) {
            l->link.succeeds = false;
            break;
        }
        hfd_loop_sleep(l, until - now, true);
        hfd_loop_tend(l);
        if (l->end)
            return HF_DRAINING;
    }
    return hfd_link_up(l) ? HF_OPEN : hfd_link_verdict(l);
}

/* The first refusal may be a mistake: a worker that was busy can read the OPEN of a session that is long over behind ours,
   and then takes ours for the older one. Further ones are meant: two daemons that take each other's place do so seldom. */
uint64_t hfd_link_reopen_after(const struct hfd_loop *l)
{
    const struct hfd_link *k = &l->link;
    uint64_t most = l->config.reopen_ns;
    bool lasted = k->state == HFD_LINK_UP && hf_now_ns() - k->changed_ns >= LASTED * most;
    uint64_t next = k->reopen_after_ns && !lasted ? 2 * k->reopen_after_ns : most / FIRST_REOPEN;

    return next < most ? next : most;
}
