/* SPDX-License-Identifier: Apache-2.0 */
/* A link in the place of another: what rounds do that come in between. */
#include "loopstate.h"

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
