/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a worker may take to answer OPEN and PING. One that has our messages and is slow gets twice as long at the next try: a
 * worker that starts anew with many sessions would otherwise work through OPENs whose links were given up meanwhile, for ever.
 */
#include "loopstate.h"

#define MOST_DOUBLINGS 4
#define OPEN_DOUBLINGS 2 /* at least, where OPEN has arrived: another connection to the same worker would only be one more to open */

/* An answer to OPEN, or to a PING; HFD_AWAITED_MAX: neither is due. */
static enum hfd_awaited awaited(const struct hfd_link *k)
{
    if (k->state == HFD_LINK_OPENING)
        return HFD_AWAITED_OPENED;
    return k->pinged_ns ? HFD_AWAITED_PONG : HFD_AWAITED_MAX;
}

/* Against the first limit, doubled so often. */
static bool in_time(const struct hfd_loop *l, enum hfd_awaited what, uint32_t doublings, uint64_t now_ns)
{
    bool opening = what == HFD_AWAITED_OPENED;
    uint64_t limit = opening ? l->config.open_limit_ns : l->config.ping_limit_ns;

    return now_ns - (opening ? l->link.changed_ns : l->link.pinged_ns) < limit << doublings;
}

/* What has not even arrived was sent into a network that is cut: another connection is what may help there, and soon. */
static bool arrived(const struct hfd_loop *l)
{
    struct hfd_transport *t = l->link.transport;

    return !t->ops->arrived || t->ops->arrived(t);
}

bool hfd_patience_spent(struct hfd_loop *l, uint64_t now_ns)
{
    enum hfd_awaited what = awaited(&l->link);

    if (what == HFD_AWAITED_MAX || in_time(l, what, 0, now_ns))
        return false;
    if (!arrived(l))
        return true;
    if (what == HFD_AWAITED_OPENED && l->doublings[what] < OPEN_DOUBLINGS)
        l->doublings[what] = OPEN_DOUBLINGS;
    if (in_time(l, what, l->doublings[what], now_ns))
        return false;
    if (l->doublings[what] < MOST_DOUBLINGS)
        l->doublings[what]++;
    return true;
}

void hfd_patience_answered(struct hfd_loop *l, uint64_t now_ns)
{
    enum hfd_awaited what = awaited(&l->link);

    if (what != HFD_AWAITED_MAX && in_time(l, what, 0, now_ns))
        l->doublings[what] = 0;
}
