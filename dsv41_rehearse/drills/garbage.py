# SPDX-License-Identifier: Apache-2.0
"""Drill: a worker that answers what it must not."""

from __future__ import annotations

import time

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from dsv41_rehearse import proc
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.misdeeds import Deed
from dsv41_rehearse.drills.relay import Relay
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.scrape import counters, dropped, grown
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine


EACH: Final = (1, 20)
# What is this round's reply by its header gets BAD_REPLY; anything else is dropped and counted, and the round goes on waiting.
BAD: Final = (
    Deed.SHORT, Deed.LONG, Deed.STATUS, Deed.COUNT, Deed.DRAFTS, Deed.ID_BELOW, Deed.ID_ABOVE, Deed.ID_FAR,
)  # fmt: skip
DROPPED: Final = {
    Deed.GARBAGE: "malformed", Deed.NO_HEADER: "malformed", Deed.OTHER_VERSION: "malformed", Deed.OTHER_TYPE: "type",
    Deed.OTHER_SESSION: "session", Deed.OTHER_ROUND: "stale",
}  # fmt: skip
WITHOUT_END: Final = (Deed.HUGE, Deed.ENDLESS)
HUNG_UP_MS: Final = 1000.0
MIB: Final = 64.0
BACK_MS: Final = 5000.0  # a breaker that has opened tries at most every 4 s


@dataclass
class Garbage:
    """The act. ``verdicts``: by deed, what its round ended with. ``hung_up``: from the first byte. ``grew_mib``: the daemon, at most."""

    stage: Stage
    relay: Relay
    each: int
    verdicts: dict[str, list[str]] = field(default_factory=dict)
    hung_up: dict[str, list[Timed]] = field(default_factory=dict)
    grew_mib: float = 0.0
    back: list[Timed] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def act(self, _engine: Engine, drafting: ShimDrafting) -> None:
        """Do each of them so many times."""
        for _ in range(self.each):
            for deed in (*BAD, *DROPPED):
                self._once(drafting, deed)
            for deed in WITHOUT_END:
                self._flood(drafting, deed)

    def _once(self, drafting: ShimDrafting, deed: Deed) -> None:
        before, ended = counters(self.stage.newest_daemon), drafting.sessions.fell_back
        known = len(ended)
        self.relay.ask(deed)
        if not drafting.sessions.wait(lambda: self.relay.done > 0 and len(ended) > known, BACK_S):
            self.faults.append(f"{deed.name}: no round fell back")
            return
        verdict = ended[known].verdict
        self.verdicts.setdefault(deed.name, []).append(verdict)
        after = counters(self.stage.newest_daemon)
        wanted, counter = ("BAD_REPLY", "bad_replies_total") if deed in BAD else ("TIMEOUT", dropped(DROPPED[deed]))
        if verdict != wanted:
            self.faults.append(f"{deed.name}: verdict {verdict}, not {wanted}")
        if grown(before, after, counter) != 1:
            self.faults.append(f"{deed.name}: {counter} grew by {grown(before, after, counter)}")
        self._drafting_again(drafting, deed)

    def _flood(self, drafting: ShimDrafting, deed: Deed) -> None:
        daemon, board = self.stage.newest_daemon.pid, self.relay.board
        before = most = proc.rss_private_mib(daemon)
        self.relay.ask(deed)
        until = time.monotonic() + BACK_S
        while not board.get("hung_up_ns") and time.monotonic() < until:
            most = max(most, proc.rss_private_mib(daemon))
            time.sleep(0.002)
        if not board.get("hung_up_ns"):
            self.faults.append(f"{deed.name}: the daemon did not hang up within {BACK_S:g} s")
            self.relay.ask(Deed.NONE, count=0)
            return
        self.grew_mib = max(self.grew_mib, most - before)
        took = Timed.between(board.get("began_ns"), board.get("hung_up_ns"))
        self.hung_up.setdefault(deed.name, []).append(took)
        self._drafting_again(drafting, deed)

    def _drafting_again(self, drafting: ShimDrafting, deed: Deed) -> None:
        now = time.monotonic_ns()
        back_ns = drafting.sessions.wait_drafted_after(now, BACK_S)
        if back_ns is None:
            self.faults.append(f"{deed.name}: no drafts any more")
        else:
            self.back.append(Timed.between(now, back_ns))
        pause(drafting, 0.05)


def _worker_garbage(plan: Plan) -> Row:
    with ExitStack() as exits:
        stage = exits.enter_context(Stage(plan=plan, daemon=False))
        relay = Relay(stage.stack, stage.endpoint)
        stage.endpoint = relay.endpoint
        pid = stage.start_daemon().pid
        garbage = Garbage(stage, relay, plan.count(*EACH))
        played = stage.run(garbage.act)
    kinds = len(BAD) + len(DROPPED)
    row = Row(
        "worker-garbage",
        f"{kinds} kinds of replies that do not fit, a frame of 1 GiB and endless parts; {garbage.each} times each",
    )
    row.faults += garbage.faults
    row.expect({one.pid for one in played.driven.sessions.seen} == {pid}, "another daemon")
    hung_up = [one for times in garbage.hung_up.values() for one in times]
    row.detected_ms = longest_ms(hung_up)
    row.expect(bool(hung_up), "the daemon never hung up")
    row.bounds("the daemon hangs up", hung_up, HUNG_UP_MS)
    row.expect(garbage.grew_mib <= MIB, f"the daemon grew by {garbage.grew_mib:.0f} MiB, bound {MIB:g}")
    row.recovered_ms = longest_ms(garbage.back)
    row.bounds("drafting again", garbage.back, BACK_MS)
    row.details |= {
        "verdicts": garbage.verdicts,
        "hung_up_ms": {name: [one.ms for one in times] for name, times in garbage.hung_up.items()},
        "grew_mib": round(garbage.grew_mib, 1),
    }
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="worker-garbage",
        fault="replies that are garbage, of another session or round, with wrong sizes, counts or ids; a frame of 1 GiB, endless parts",
        bound="a reply of this round that does not fit: BAD_REPLY; what is none of it: dropped and counted; neither is ever used; the link "
        "is dropped ≤ 1 s after a flood began, the daemon grows by ≤ 64 MiB and stays",
        run=_worker_garbage,
        quick_s=12,
        group="worker",
    ),
)
