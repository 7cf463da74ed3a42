# SPDX-License-Identifier: Apache-2.0
"""How the product meets each bound: a line a drill, for docs/FAULTS.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


MET: Final[Mapping[str, str]] = {
    "daemon-kill": "the watchdog polls the session's socket: POLLHUP ends open rounds LOST at once; the keeper reconnects and the "
    "region, whose owner is gone, goes on",
    "daemon-stop": "the beat stands still; the region stays fenced and the next session gets another one; a daemon that goes on "
    "sees the `lost` word before it writes anything further",
    "engine-stop": "the beat is counted in the watchdog's own running time, so its own pause is no loss",
    "daemon-stop-short": "a beat may be missed for 400 ms and a beat's age; a round that expires meanwhile is only one",
    "both-stop": "neither clock runs while both stand still",
    "freeze-daemon": "as a stopped daemon",
    "freeze-engine": "as a stopped engine: what only the pause made old is an expiry, but no evidence",
    "freeze-both": "as both stopped",
    "idle": "at rest the watchdog sleeps in poll, the loop in a futex; pings keep the worker's link known to be alive",
    "worker-kill": "the transport's monitor tells of the lost connection: rounds end DISCONNECTED at once, the breaker is open "
    "until a worker has opened the session again; the link comes back by itself",
    "worker-hang": "the network timeout ends the round; the link is opened anew, and a reply of another round is dropped and counted",
    "worker-garbage": "a reply is checked in private memory before anything is written; what costs more than any legal message is cut",
    "network-cut": "the same timeout; the transport connects again by itself",
    "slow-daemon": "no free slot: the step is target-only, counted by its reason; nothing waits",
    "engine-kill": "POLLHUP ends the loop, which unmaps and closes; everything is the session's and goes with it",
    "session-resets": "a session has a watchdog of its own and the round counter goes on, so nothing is reset under a live one",
    "daemon-restarts": "the region is adopted each time, never registered anew",
    "adoption-refused": "seals, size, header and words are checked before the region is mapped",
    "limits": "what cannot be had is refused in words, for that session alone",
    "handshake-door": "packets are bounded, typed and timed; who says nothing is closed; doors are counted a user",
    "budget-spent": "lost sessions are counted an hour; then target-only, said once, until one comes back",
    "drain": "rounds end DRAINING, the session is told, and its loss is a planned one",
    "endpoint-change": "the new link is opened before the old one is left",
    "shim-close": "close waits for the stream in bounds, then keeps the memory and says so",
    "soak": "all of these",
    "daemon-closes": "only POLLHUP counts, and the loop's own duplicate of the socket keeps that from coming before its end",
    "hello-queued": "a region is offered only after WELCOME: a HELLO that waited holds nothing",
    "core-dump": "the socket stays open until the core is written: lost by the beat, and the region fenced as long",
    "submit-fails": "the session is lost, its region poisoned; its watchdog goes on releasing what is gathered there",
    "watchdog-stalled": "whoever loses the swap releases too; a watchdog whose tick is old refuses submits",
    "cpu-quota": "pauses by the quota are the watchdog's own; a watchdog that was starved refuses submits",
    "forked-child": "the socket is close-on-exec and closed in the child",
    "flood": "a session has a link and a loop of its own; one that costs too much is cut",
}
