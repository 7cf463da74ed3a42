# SPDX-License-Identifier: Apache-2.0
"""Rehearsals as processes, for tests of the whole system."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dsv41_rehearse.proc import alive


WAIT_S: Final = 60.0
RUN_S: Final = 110.0  # a whole run of 15 s on a quiet machine; a test may take 120
# Small rows and no GPU time: what is tested is the way, not its speed.
QUICK: Final = ("--rows-bytes", "192", "--gpu-ms", "0.2")


class Rehearsal:
    """A dsv41-rehearse process and what it reports."""

    def __init__(self, directory: Path, command: str, *arguments: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # Not below pytest's directory: a Unix socket's path is short.
        self.scratch = Path(tempfile.mkdtemp(prefix="dsv41-"))
        self.json = directory / "report.json"
        self.log = directory / "rehearse.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dsv41_rehearse", command, *arguments, "--json", str(self.json)],
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": str(self.scratch)},
            )

    def end(self, timeout_s: float = WAIT_S) -> int:
        """Wait for its end; return its exit status."""
        return self.process.wait(timeout_s)

    def report(self) -> dict[str, Any]:
        """Return its report once it has ended with 0."""
        status = self.end(RUN_S)
        assert status == 0, self.said()
        report: dict[str, Any] = json.loads(self.json.read_text())
        return report

    def said(self) -> str:
        """Return what it printed."""
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def left(self) -> list[Path]:
        """Return what it left in its temporary directory."""
        return list(self.scratch.iterdir())


@contextmanager
def rehearsal(directory: Path, command: str, *arguments: str) -> Iterator[Rehearsal]:
    """Start a rehearsal; it does not outlive the block."""
    started = Rehearsal(directory, command, *arguments)
    try:
        yield started
    finally:
        started.kill()
        shutil.rmtree(started.scratch)


def run(directory: Path, command: str, *arguments: str) -> dict[str, Any]:
    """Run a rehearsal to its end, which has to be 0; return its report."""
    with rehearsal(directory, command, *arguments) as started:
        report = started.report()
        assert started.left() == []
        return report


def wait_until(what: Callable[[], bool], timeout_s: float = WAIT_S, *, why: str = "") -> None:
    """Wait until something holds; fail after ``timeout_s``."""
    until = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < until, why or "it did not come to hold"
        time.sleep(0.02)


def gone(pids: Sequence[int]) -> bool:
    """Whether none of these processes runs any more."""
    return not any(alive(pid) for pid in pids)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
