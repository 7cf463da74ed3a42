# SPDX-License-Identifier: Apache-2.0
"""Drill: the network between daemon and worker gets bad, or is cut without a word."""

from __future__ import annotations

import time

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.drills.tun import FAR, Network, NoTunError, Weather
from dsv41_rehearse.engine import Engine


TIMES: Final = (1, 15)
FOR_S: Final = (1.5, 4.0)
NETWORK_TIMEOUT_MS: Final = 150.0
TIMEOUT_MS: Final = 165.0
# A connection is tried for 0.5 s, the next one 0.2 s later at most.
BACK_MS: Final = 1000.0
# Where rounds got through and failed, the circuit breaker opened for 0.5 s, then for twice as long each time: never for longer than it
# had been bad by then.
COOL_MS: Final = (500.0, 4000.0)
ROW_BYTES: Final = 4096
FINE: Final = Weather(delay_ms=0.2)
WEATHERS: Final = {
    "10 % loss": Weather(loss=0.10, delay_ms=1.0),
    "80 ms delay": Weather(delay_ms=40.0, jitter_ms=5.0),
    "300 ms delay": Weather(delay_ms=150.0),
    "reordering": Weather(delay_ms=5.0, jitter_ms=10.0, reordered=0.2),
    "blackhole": Weather(cut=True),
}


@dataclass
class Spell:
    """What came of one kind: rounds by verdict, what those without drafts took, how long after its end until the first drafts."""

    verdicts: dict[str, int] = field(default_factory=dict)
    took: list[Timed] = field(default_factory=list)
    back: list[Timed] = field(default_factory=list)


@dataclass
class Spells:
    """The act."""

    network: Network
    plan: Plan
    spells: dict[str, Spell] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def act(self, engine: Engine, drafting: ShimDrafting) -> None:
        """Each kind of weather for a while, fine weather in between."""
        for _ in range(self.plan.count(*TIMES)):
            for name, weather in WEATHERS.items():
                pause(drafting, 0.3)
                if not self._one(engine, drafting, name, weather):
                    self.faults.append(f"{name}: no drafts any more after it")
                    return

    def _one(self, engine: Engine, drafting: ShimDrafting, name: str, weather: Weather) -> bool:
        spell = self.spells.setdefault(name, Spell())
        before, known = dict(engine.tally.rounds), len(drafting.sessions.fell_back)
        self.network.board.weather = weather
        pause(drafting, self.plan.seconds(*FOR_S))
        self.network.board.weather = FINE
        fine_ns = time.monotonic_ns()
        back_ns = drafting.sessions.wait_drafted_after(fine_ns, BACK_S)
        for verdict, count in dict(engine.tally.rounds).items():
            spell.verdicts[verdict] = spell.verdicts.get(verdict, 0) + count - before.get(verdict, 0)
        ended = drafting.sessions.fell_back[known:]
        spell.took += [Timed(one.took_ms, one.gathered_ns) for one in ended]
        spell.back.append(Timed.between(fine_ns, back_ns))
        return back_ns is not None


def _network_cut(plan: Plan) -> Row:
    with ExitStack() as exits:
        stage = exits.enter_context(
            Stage(plan=plan, drafter=None, daemon=False, audit=False, options={"row_bytes": ROW_BYTES})
        )
        try:
            network = Network(stage.stack, plan.seed)
        except NoTunError as fault:
            return Row("network-cut", "not done", skipped=str(fault))
        network.board.weather = FINE
        _start(stage, network)
        spells = Spells(network, plan)
        played = stage.run(spells.act)
        counts = network.board.counts
    row = Row(
        "network-cut",
        f"{', '.join(spells.spells)}, each {plan.count(*TIMES)} times; {counts[1]} of {sum(counts[:2])} packets lost",
    )
    row.faults += spells.faults
    _judge(row, spells, plan.seconds(*FOR_S))
    # The daemon's own timeout comes first, unless something stood still for the difference.
    rounds = sum(played.report.rounds.values())
    row.expired("bad weather", played.expired, stage.deadline_ms, NETWORK_TIMEOUT_MS, among=rounds)
    row.details["packets"] = {"carried": counts[0], "lost": counts[1], "overtaken": counts[2]}
    return played.fill(row)


def _start(stage: Stage, network: Network) -> None:
    """Put the worker on the one host, the daemon on the other; the engine is the daemon's by its Unix socket."""
    stage.drafter = "mock"  # what every draft is held against
    arguments = ["--bind", f"tcp://{FAR}:5741", "--drafter", "mock", "--delay-ms", "3", "--log-format", "json"]
    stage.stack.start("worker", "dsv41_rehearse.drills.inside", [network.far, "refworker", *arguments]).ready()
    stage.endpoint = f"tcp://{FAR}:5741"
    stage.start_daemon(module="dsv41_rehearse.drills.inside", before=[network.near, "proxyd"])


def _judge(row: Row, spells: Spells, bad_s: float) -> None:
    shown: dict[str, Any] = {}
    for name, spell in spells.spells.items():
        # Nothing that the daemon decided took longer than the timeout, whatever the network did.
        row.bounds(f"{name}: a round without drafts", spell.took, TIMEOUT_MS)
        cool_ms = min(max(bad_s * 1e3, COOL_MS[0]), COOL_MS[1]) if spell.verdicts.get("BREAKER", 0) else 0.0
        row.bounds(f"{name}: drafting again after it", spell.back, BACK_MS + cool_ms)
        back_ms = [one.ms for one in spell.back]
        shown[name] = {"rounds": spell.verdicts, "longest_ms": longest_ms(spell.took), "back_ms": back_ms}
    cut = spells.spells.get("blackhole", Spell())
    row.expect(cut.verdicts.get("TIMEOUT", 0) > 0, "no round ran into the timeout: nothing was cut")
    row.released_ms = longest_ms(one for spell in spells.spells.values() for one in spell.took)
    row.recovered_ms = longest_ms(one for spell in spells.spells.values() for one in spell.back)
    row.details["weather"] = shown


DRILLS: Final = (
    Drill(
        name="network-cut",
        fault="daemon and worker on two hosts (network namespaces) joined by a user-space link that loses, delays, reorders or swallows packets",
        bound="no round takes longer than the network timeout, none expires; drafting again by itself ≤ 1 s after the network is fine, where the circuit "
        "breaker opened after its cool-down: as long again as it was bad, ≤ 4 s; no wrong draft",
        run=_network_cut,
        quick_s=18,
        group="worker",
    ),
)
