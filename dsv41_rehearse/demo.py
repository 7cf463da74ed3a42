# SPDX-License-Identifier: Apache-2.0
"""The demo: everything in one command, and nothing left of it afterwards."""

from __future__ import annotations

import os
import time

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from dsv41_rehearse.audit_compare import Comparison, compare
from dsv41_rehearse.drafting import ModeName
from dsv41_rehearse.drill import Drill, Hand, kill_once
from dsv41_rehearse.drive import Drive, Driven, drive
from dsv41_rehearse.outcome import report
from dsv41_rehearse.progress import Shown
from dsv41_rehearse.report import RunReport
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.stack import Stack


MOCK: Final = "mock"
FLUSHED_S: Final = 4.0
KILL_AT: Final = 0.3  # of the run: late enough to see what was, early enough to see what comes after


@dataclass(frozen=True, kw_only=True)
class Demo:
    """
    ``audit`` None: in the temporary directory, gone with it. ``worker_ms``: simulated draft time a round.

    ``kill``: end the daemon with SIGKILL in the middle, and start it again.
    """

    scenario: Scenario
    drafter: str
    worker_ms: float
    mode: ModeName
    kill: bool
    audit: Path | None
    keep: bool
    start_round: int | None


def run(demo: Demo, console: Console) -> RunReport:
    """Start daemon and worker, replay, stop, compare what was sent with what arrived. Nothing stays unless ``keep``."""
    console.print(f"[bold]dsv41-rehearse[/bold] {demo.scenario.describe()}", highlight=False, soft_wrap=True)
    with Drill() as drill, Stack(keep=demo.keep) as stack:
        audit = demo.audit or stack.directory / "audit"
        audit.mkdir(parents=True, exist_ok=True)
        how, driven = _drive(demo, stack, drill, audit, console)
        if demo.keep:
            compared, left_over = _compared(settled, demo, driven, audit), []
            _say_how_to_look(stack, driven, console)
        else:
            # Ended, the worker has written its last line.
            left_over = stack.end_processes()
            compared = _compared(compare, demo, driven, audit)
            left_over += stack.end()
    return report(how, driven, compared, left_over, expect_ok=True)


def _drive(demo: Demo, stack: Stack, drill: Drill, audit: Path, console: Console) -> tuple[Drive, Driven]:
    if demo.mode != "none":
        endpoint = stack.start_worker(demo.drafter, delay_ms=demo.worker_ms, audit=audit)
        daemon = stack.start_daemon(endpoint)
        console.print(
            f"  daemon pid {daemon.pid}, worker at {endpoint}, this engine pid {os.getpid()}",
            highlight=False,
            soft_wrap=True,
        )
        if demo.kill:
            drill.plan(kill_once(drill, Hand(stack, endpoint), KILL_AT))
    how = Drive(
        scenario=demo.scenario,
        socket=stack.socket,
        mode=demo.mode,
        audit=audit,
        check_mock=demo.drafter == MOCK,
        measure_idle=True,
        start_round=demo.start_round,
        drill=drill if drill.planned else None,
    )
    with Shown(console) as watch:
        return how, drive(how, watch)


def _compared(
    how: Callable[[Path, int, Sequence[int]], Comparison], demo: Demo, driven: Driven, audit: Path
) -> Comparison | None:
    """Mode none has nothing to compare."""
    return how(audit, demo.scenario.drafts, driven.books.sessions) if driven.books.sessions else None


def settled(audit: Path, drafts: int, sessions: Sequence[int]) -> Comparison:
    """Compare with a worker that is still up: its newest lines take up to a second to be on disk."""
    until = time.monotonic() + FLUSHED_S
    while True:
        found = compare(audit, drafts, sessions)
        if not found.missing or time.monotonic() > until:
            return found
        time.sleep(0.2)


def _say_how_to_look(stack: Stack, driven: Driven, console: Console) -> None:
    pids = " ".join(str(child.pid) for child in stack.children)
    console.print(
        f"  kept: {stack.directory} (logs, socket, audit) and the processes {pids}\n"
        f"  metrics: {driven.sessions.newest.metrics if driven.sessions.newest else None}\n"
        f"  end with: kill {pids}; rm -r {stack.directory}",
        highlight=False,
        soft_wrap=True,
    )
