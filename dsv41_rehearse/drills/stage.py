# SPDX-License-Identifier: Apache-2.0
"""Where a drill takes place: a real daemon, a real worker and the engine stand-in, with an act beside the engine."""

from __future__ import annotations

import json
import signal
import time

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from dsv41_rehearse.aftermath import SESSIONS_LOST
from dsv41_rehearse.audit_compare import AuditError, Comparison, compare
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import BACK_S
from dsv41_rehearse.drill import Drill as ActThread
from dsv41_rehearse.drills.drill import Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.timed import Window
from dsv41_rehearse.drive import Drive, Driven, drive
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.outcome import report
from dsv41_rehearse.progress import Silent, Watcher
from dsv41_rehearse.report import RunReport
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.sessions import Release
from dsv41_rehearse.stack import Child, Stack
from dsv41_rehearse.text import load
from engine_shim import SessionOptions
from hostflag._hostflag import lib


ENGINE_S: Final = 60.0  # for an engine of its own process to come to its end
LEFT_OVER: Final = "left over: "  # a report's fault that is a row's leaks
Act = Callable[[Engine, ShimDrafting], None]


@dataclass(frozen=True)
class Played:
    """What came of a run. ``releases``: the rounds that the watchdog let go. ``unread``: why its audit could not be compared."""

    driven: Driven
    report: RunReport
    unread: list[str]

    @property
    def releases(self) -> list[Release]:
        """Drafting rounds that ended LOST or EXPIRED, with the times they were gathered and passed."""
        return self.driven.sessions.releases

    @property
    def expired(self) -> list[Window]:
        """Those of them that expired: from the gathering on."""
        return [Window(one.gathered_ns, one.past_ns) for one in self.releases if one.verdict == "EXPIRED"]

    def _faults(self, row: Row) -> list[str]:
        """Return the report's faults. Sessions that were lost by their beat, and by nothing else, may be the machine's doing: a beat stands still with it."""
        lost = [one for one in self.driven.sessions.seen[1:] if one.lost_before]
        faults = self.report.faults
        if not any(fault.startswith(f"{SESSIONS_LOST}{len(lost)} BEAT; planned: 0") for fault in faults):
            return faults
        limit_ms = SessionOptions().beat_limit(self.driven.engine.scenario.deadline_ms, 0.0)
        for one in lost:
            window = Window(one.lost_before_ns - int(limit_ms * 1e6), one.lost_before_ns)
            # The beat may be as old as one of its intervals when all stands still.
            row.tardy(
                "sessions", "one was lost by its beat without a fault", limit_ms - 2 * lib.HF_BEAT_EVERY_MS, window
            )
        return [fault for fault in faults if not fault.startswith(SESSIONS_LOST)]

    def fill(self, row: Row) -> Row:
        """Note in a row what every run is judged by: wrong drafts, leaks, the output, steps without drafts."""
        row.wrong_drafts += self.report.wrong_drafts
        row.leaks += self.report.left_over
        row.target_only = self.report.target_only_steps
        row.faults += [fault for fault in self._faults(row) if not fault.startswith(LEFT_OVER)]
        row.faults += self.unread
        row.details["rounds"] = dict(self.report.rounds)
        row.details["skipped"] = {why: n for why, n in self.report.skipped.items() if n}
        row.details["steps"] = self.report.steps
        row.details["drafts_checked"] = self.report.drafts_checked
        return row


@dataclass(kw_only=True)
class Stage:
    """
    A context manager: inside, worker and daemon run; afterwards nothing is left of them.

    ``requests``: at once. ``drafter``: the worker's, None: no worker is started, the daemon is led to ``endpoint`` (a drill's own).
    ``daemon_flags``: for every daemon that is started here. ``audit`` False: drafts are held only against the mock's rule (a
    worker that is killed loses the end of its audit). ``deadline_ms``: of a round. ``options``: further ones of the scenario, ``shim``: of the shim.
    ``module``: what is started as the daemon. ``planned``: losses that the act means to cause; it may count them up; None: any number is right.
    """

    plan: Plan
    requests: int = 3
    drafter: str | None = "mock"
    worker_ms: float = 3.0
    endpoint: str = ""
    daemon: bool = True
    daemon_flags: Sequence[str] = ()
    deadline_ms: float = 200.0
    audit: bool = True
    respawns: int = 1_000_000
    shim: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    planned: int | None = 0
    stack: Stack = field(init=False)
    _thread: ActThread = field(init=False)
    _exits: ExitStack = field(default_factory=ExitStack, init=False)

    def __enter__(self) -> Stage:
        with ExitStack() as exits:
            self._thread = exits.enter_context(ActThread())
            self.stack = exits.enter_context(Stack())
            self.audit_directory.mkdir()
            if self.drafter is not None:
                self.endpoint = self.start_worker()
            if self.daemon:
                self.start_daemon()
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    @property
    def audit_directory(self) -> Path:
        """Where engines and workers write what they meant to send and what they got."""
        return self.stack.directory / "audit"

    @property
    def newest_daemon(self) -> Child:
        """The daemon that was started last."""
        return self.stack.named("daemon")

    def start_worker(self, *, bind: str = "tcp://127.0.0.1:*", name: str = "worker") -> str:
        """Start a worker with this stage's drafter and draft time. Returns the endpoint it bound."""
        audit = self.audit_directory if self.audit else None
        return self.stack.start_worker(
            self.drafter or "mock", delay_ms=self.worker_ms, audit=audit, name=name, bind=bind
        )

    def start_daemon(
        self, *, name: str = "daemon", socket: Path | None = None, module: str = "proxyd", before: Sequence[str] = ()
    ) -> Child:
        """Start a daemon and wait until it is ready. ``before``: arguments of ``module`` ahead of the daemon's own."""
        arguments = [
            "--socket",
            str(socket or self.stack.socket),
            "--worker",
            self.endpoint,
            "--metrics",
            "127.0.0.1:0",
        ]
        daemon = self.stack.start(name, module, [*before, *arguments, "--log-format", "json", *self.daemon_flags])
        daemon.ready()
        return daemon

    def scenario(self) -> Scenario:
        """Return what the engine does."""
        return Scenario(text=load(), **self.scenario_options())

    def scenario_options(self) -> dict[str, Any]:
        """Return that as options: without end, at an engine's pace, rounds with all kinds of row counts."""
        usual: dict[str, Any] = {
            "rounds": 1, "concurrency": self.requests, "length": 4_000, "arrival_steps": 20, "gpu_ms": 3.0,
            "simulate_acceptance": True, "seed": self.plan.seed, "deadline_ms": self.deadline_ms,
        }  # fmt: skip
        return {**usual, **self.options}

    def run(self, act: Act, watch: Watcher | None = None) -> Played:
        """
        Run the engine in this thread until ``act`` is done beside it; then end daemon and worker and compare what each of them saw.

        ``act`` is called once rounds are being drafted. What it raises is raised here. ``watch``: called after each step.
        """

        def once_drafting(engine: Engine, drafting: ShimDrafting) -> None:
            if drafting.sessions.wait_drafted_after(1, BACK_S) is not None:
                act(engine, drafting)

        scenario = self.scenario()
        self._thread.plan(once_drafting)
        self._thread.bound_ms = None
        audit = self.audit_directory if self.audit else None
        how = Drive(
            scenario=scenario, socket=self.stack.socket, audit=audit, check_mock=self.drafter == "mock",
            respawns=self.respawns, shim=self.shim, drill=self._thread,
        )  # fmt: skip
        driven = drive(how, watch or Silent())
        left_over = self.stack.end_processes()
        compared: Comparison | None = None
        unread: list[str] = []
        try:
            if self.audit and driven.books.sessions:
                compared = compare(self.audit_directory, scenario.drafts, driven.books.sessions)
        except AuditError as error:
            # What else the run showed is not lost with it.
            unread.append(str(error))
        self._thread.planned = self.planned or 0
        return Played(driven, report(how, driven, compared, left_over, expect_ok=self.planned is not None), unread)

    def start_engine(self, *arguments: str, name: str = "engine") -> Child:
        """Start an engine stand-in as a process of its own (``dsv41-rehearse run``). ``engine_report`` waits for its end."""
        report_file = self.stack.directory / f"{name}.json"
        report_file.unlink(missing_ok=True)
        usual = ["run", "--quiet", "--socket", str(self.stack.socket), "--json", str(report_file)]
        usual += ["--audit", str(self.audit_directory)] if self.audit else []
        usual += ["--expect-mock"] if self.drafter == "mock" else []
        return self.stack.start(name, "dsv41_rehearse", [*usual, *arguments])

    def engine_report(self, engine: Child, timeout_s: float = ENGINE_S) -> dict[str, Any]:
        """Wait for an engine's end and return its report. Raises TimeoutExpired, or OSError where it left none."""
        engine.process.wait(timeout_s)
        report_file = self.stack.directory / f"{engine.name}.json"
        made: dict[str, Any] = json.loads(report_file.read_text())
        return made


def end_engine(engine: Child) -> None:
    """Ask an engine of its own process to end, as Ctrl-C does."""
    engine.process.send_signal(signal.SIGCONT)
    engine.process.send_signal(signal.SIGINT)


def pause(drafting: ShimDrafting, seconds: float) -> None:
    """Let so much time pass, or less where the run is over."""
    until = time.monotonic() + seconds
    drafting.sessions.wait(lambda: time.monotonic() >= until, seconds + 1.0)
