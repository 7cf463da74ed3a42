# SPDX-License-Identifier: Apache-2.0
"""The soak: daemon or worker killed, stopped or left for another, many times in a row and under load."""

from __future__ import annotations

import random
import time

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console

from dsv41_rehearse.audit_compare import compare
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S, Drill, Hand, Loss
from dsv41_rehearse.drive import Drive, Driven, drive
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.gauge import Gauge, Level, grown
from dsv41_rehearse.outcome import report
from dsv41_rehearse.progress import Silent
from dsv41_rehearse.report import RunReport
from dsv41_rehearse.samples import Few
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.stack import Stack


What = Literal["daemon", "worker", "switch"]
LINE_EVERY_S: Final = 5.0
PAUSE_S: Final = (0.05, 0.35)  # under load, from the first drafted round to the next kill
WORKER_MS: Final = 3.0


@dataclass(frozen=True, kw_only=True)
class Kills:
    """``stop``: SIGSTOP, and SIGCONT once the next daemon has been drafted with, instead of SIGKILL."""

    scenario: Scenario
    kills: int
    what: What
    stop: bool


@dataclass
class Soak:
    """What was done so far, and what engine and daemon held after each time."""

    kills: Kills
    stack: Stack
    endpoints: list[str]
    audit: Path | None
    console: Console
    done: list[Loss] = field(default_factory=list)
    fell_back: list[int] = field(default_factory=list)  # rounds that ended without drafts, each time
    gauge: Gauge = field(default_factory=Gauge)
    _said: float = 0.0

    def act(self, engine: Engine, drafting: ShimDrafting) -> None:
        """Do it so many times. The drill's."""
        random_pause = random.Random(self.kills.scenario.seed)
        once: Callable[[ShimDrafting, int], Loss] = {
            "daemon": self._daemon, "worker": self._worker, "switch": self._switch,
        }[self.kills.what]  # fmt: skip
        if drafting.sessions.wait_drafted_after(1, BACK_S) is None:
            return
        for number in range(self.kills.kills):
            pause_until = time.monotonic() + random_pause.uniform(*PAUSE_S)
            drafting.sessions.wait(lambda until=pause_until: time.monotonic() >= until, BACK_S)  # type: ignore[misc]
            before = _not_ok(engine)
            loss = once(drafting, number)
            self.done.append(loss)
            self.fell_back.append(_not_ok(engine) - before)
            self.gauge.look(drafting.sessions.seen[-1].pid)
            self._say(number, loss)
            if loss.back_ns is None:
                return

    def _daemon(self, drafting: ShimDrafting, _number: int) -> Loss:
        return Hand(self.stack, self.endpoints[0]).replace_daemon(drafting, stop=self.kills.stop)

    def _worker(self, drafting: ShimDrafting, _number: int) -> Loss:
        victim = self.stack.named("worker")
        hurt_ns = victim.stop() if self.kills.stop else victim.kill()
        if self.kills.stop:
            drafting.sessions.wait(lambda: False, 1.0)
            victim.resume()
            ready_ns = time.monotonic_ns()
        else:
            self.stack.forget(victim)
            self.stack.start_worker("mock", delay_ms=WORKER_MS, bind=self.endpoints[0])
            ready_ns = self.stack.named("worker").ready_ns
        return _untouched(drafting, hurt_ns, ready_ns)

    def _switch(self, drafting: ShimDrafting, number: int) -> Loss:
        hurt_ns = time.monotonic_ns()
        self.stack.switch_worker(self.endpoints[(number + 1) % len(self.endpoints)])
        return _untouched(drafting, hurt_ns, time.monotonic_ns())

    def _say(self, number: int, loss: Loss) -> None:
        if time.monotonic() - self._said < LINE_EVERY_S:
            return
        self._said = time.monotonic()
        back = "-" if loss.recovery_ms is None else f"{loss.recovery_ms:.0f} ms after it was ready"
        self.console.print(
            f"  {number + 1} of {self.kills.kills}: drafting again {back}; {self.gauge.newest}",
            highlight=False,
            soft_wrap=True,
        )


def _untouched(drafting: ShimDrafting, hurt_ns: int, ready_ns: int) -> Loss:
    """Return what came of something that the session survives."""
    pid = drafting.sessions.seen[-1].pid
    back_ns = drafting.sessions.wait_drafted_after(ready_ns, BACK_S)
    return Loss(
        hurt_ns=hurt_ns, reason=None, lost_ns=None, ready_ns=ready_ns, back_ns=back_ns, released_ns=[], pid_before=pid,
        pid_after=drafting.sessions.seen[-1].pid,
    )  # fmt: skip


def _not_ok(engine: Engine) -> int:
    rounds = dict(engine.tally.rounds)
    return sum(rounds.values()) - rounds.get("OK", 0)


@dataclass(frozen=True)
class KillsReport:
    """``run``: the whole run's report. ``first`` and ``last``: what engine and daemon held after the first and last kills."""

    kills: int
    what: What
    signal: str
    fell_back: Few
    first: Level | None
    last: Level | None
    run: RunReport
    faults: list[str]

    def plain(self) -> dict[str, Any]:
        """
        Return it as one flat report.

        Nobody idles here, and of a daemon that lives for moments no CPU time is told: the kernel counts it in 10 ms.
        """
        values = asdict(self)
        run_ = values.pop("run")
        for name in ("idle_cpu_percent", *(["cpu_percent"] if self.what == "daemon" else [])):
            del run_["daemon"][name]
        return {**run_, **values}


def run(kills: Kills, console: Console) -> KillsReport:
    """Do it. Nothing stays behind."""
    with Drill() as drill, Stack() as stack:
        # A worker that is killed loses the end of its audit: then the mock's own check of every draft has to do.
        audit = None if kills.what == "worker" else stack.directory / "audit"
        if audit is not None:
            audit.mkdir()
        names = ["worker", "worker-2"] if kills.what == "switch" else ["worker"]
        endpoints = [stack.start_worker("mock", delay_ms=WORKER_MS, audit=audit, name=name) for name in names]
        stack.start_daemon(endpoints[0])
        soak = Soak(kills, stack, endpoints, audit, console)
        drill.plan(soak.act)
        drill.planned = kills.kills if kills.what == "daemon" else 0
        drill.losses, drill.bound_ms = soak.done, None
        how = Drive(
            scenario=kills.scenario, socket=stack.socket, audit=audit, check_mock=True, respawns=kills.kills + 1, drill=drill,
        )  # fmt: skip
        with Silent() as watch:
            driven = drive(how, watch)
        left_over = stack.end_processes()
        compared = None if audit is None else compare(audit, kills.scenario.drafts, driven.books.sessions)
        left_over += stack.end()
    made = report(how, driven, compared, left_over, expect_ok=True)
    return _report(soak, driven, made)


def _report(soak: Soak, driven: Driven, made: RunReport) -> KillsReport:
    kills = soak.kills
    first, last = soak.gauge.ends()
    faults = [*made.faults, *(grown(first, last) if first and last else [])]
    if len(soak.done) < kills.kills:
        faults.append(f"only {len(soak.done)} of {kills.kills} were done")
    registered = driven.status["registrations"]
    # One that was only stopped keeps its region until it goes on: two take turns then.
    allowed = 2 if kills.what == "daemon" and kills.stop else 1
    if registered > allowed:
        faults.append(f"{registered} regions were registered: {allowed} would do")
    return KillsReport(
        kills=len(soak.done), what=kills.what, signal="stop" if kills.stop else "kill", fell_back=Few.of(soak.fell_back),
        first=first, last=last, run=made, faults=faults,
    )  # fmt: skip


def show(console: Console, made: KillsReport) -> None:
    """Print the summary."""
    run_, what = made.run, {"switch": "switches of the worker"}.get(made.what, f"{made.what} {made.signal}s")
    for name, said in (
        (what, f"{made.kills}, {run_.requests_completed} requests completed meanwhile, {run_.steps} steps"),
        ("losses", ", ".join(f"{n} {reason}" for reason, n in run_.losses.items() if n) or "none"),
        ("seen", f"{run_.loss_seen_ms} ms after the signal; parked rounds let go after {run_.released_ms} ms"),
        ("back", f"{run_.recovery_ms} ms after readiness, {run_.recovery_from_kill_ms} ms after the signal"),
        ("fell back", f"{made.fell_back} rounds each time"),
        ("regions", f"{run_.registrations} registered, {run_.adoptions} adoptions"),
        ("drafts", f"{run_.drafts_checked} checked, {run_.wrong_drafts} wrong"),
        ("rows", f"{run_.rows_checked} checked, {run_.wrong_rows} wrong"),
        ("held", f"{made.first} after the first, {made.last} after the last"),
    ):
        console.print(f"[bold]{name:<10}[/bold] {said}", highlight=False, soft_wrap=True)
    for fault in made.faults:
        console.print(f"[red]WRONG[/red]      {fault}", highlight=False, soft_wrap=True)
    if not made.faults:
        console.print("[green]GOOD[/green]", highlight=False)
