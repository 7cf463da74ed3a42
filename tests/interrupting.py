# SPDX-License-Identifier: Apache-2.0
"""
Interruptions at every line: what is interrupted there must leave nothing behind that the stream, or a second try, trips over.

Run as a process of its own: where it goes wrong that is a segmentation fault, at once or at the interpreter's exit.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import signal
import sys
import threading
import time

from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

from engine_harness import SMALL
from shim_daemon import Daemons

from dsv41_rehearse import drive, interrupts
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.text import load
from engine_shim import Shim, ShimOptions, SoftStream
from hostflag.messages import EngineIdentity


OURS: Final = ("/engine_shim/", "/dsv41_rehearse/")
STRICT: Final = ShimOptions(strict=True)


@contextlib.contextmanager
def at_line(number: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Act at the so-manieth line of ours that this thread comes to. Gives how many those were."""
    lines = [0]

    def look(frame: FrameType, event: str, _argument: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in OURS):
            return None
        # Where a with block ends, tracing comes between it and its __exit__, which no signal does.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith("with "):
            lines[0] += 1
            if lines[0] == number:
                act()
        return look

    sys.settrace(look)
    try:
        yield lines
    finally:
        sys.settrace(None)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def engine_threads() -> list[str]:
    """Return which threads of an engine there are: keeper, watchdog, soft stream."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # one that has just ended
            names.append(task.joinpath("comm").read_text().strip())
    return [name for name in names if name in {"hf-softstream", "hf-watchdog"}] + [
        thread.name for thread in threading.enumerate() if thread.name == "hf-keeper"
    ]


def closing_shims(directory: Path) -> int:
    """Interrupt a shim's close at each line, and close it again. Returns how many lines there were."""
    with Daemons(directory / "e"):
        for number in range(1, 10_000):
            stream = SoftStream()
            shim = Shim(
                directory / "e",
                geometry=SMALL,
                model="test",
                engine=EngineIdentity(name="e"),
                stream=stream,
                options=STRICT,
            )
            with contextlib.suppress(KeyboardInterrupt), at_line(number, _interrupt) as lines:
                shim.close()
            shim.close()
            assert shim.status().sessions == 1
            stream.close()
            if lines[0] < number:
                return number
    raise AssertionError("it never ends")


def starting_shims(directory: Path) -> int:
    """Interrupt a shim's constructor while its keeper makes a region known to the stream. Returns how often that was done."""
    there = threading.Event()
    held = SoftStream.hold

    def hold(stream: SoftStream) -> Any:
        got = held(stream)
        if threading.current_thread() is not threading.main_thread():
            there.set()
            time.sleep(0.05)  # as long as a large region takes to be locked in memory
        return got

    def first_session(_shim: Shim, timeout_s: float) -> None:
        assert there.wait(timeout_s)
        raise KeyboardInterrupt

    with (
        Daemons(directory / "e"),
        patch.object(SoftStream, "hold", hold),
        patch.object(Shim, "first_session", first_session),
    ):
        for _ in range(5):
            there.clear()
            stream = SoftStream()
            try:
                Shim(
                    directory / "e",
                    geometry=SMALL,
                    model="test",
                    engine=EngineIdentity(name="e"),
                    stream=stream,
                    options=STRICT,
                )
            except KeyboardInterrupt:
                stream.close()
            else:
                raise AssertionError("it was not interrupted")
            assert not [thread for thread in threading.enumerate() if thread.name == "hf-keeper"]
    return 5


def rehearsals(directory: Path) -> int:
    """Send SIGTERM at lines of a rehearsal's first session, 7 apart: each ends it in order. Returns how many lines there were."""
    how = drive.Drive(
        scenario=Scenario(text=load(), concurrency=1, row_bytes=192, ring_bytes=1 << 16), socket=directory / "e"
    )
    with Daemons(directory / "e") as daemons:
        for number in range(1, 100_000, 7):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            ended = False
            with interrupts.heeded():
                try:
                    with at_line(number, _terminate) as lines:
                        drive._probe(how)
                except interrupts.TerminatedError:
                    ended = True
            if lines[0] < number:
                assert not ended
                assert daemons.hosts
                return number
            assert ended, number
            assert not engine_threads(), number
    raise AssertionError("it never ends")


WHAT: Final = {"closing": closing_shims, "starting": starting_shims, "rehearsals": rehearsals}


if __name__ == "__main__":
    sys.stdout.write(f"{WHAT[sys.argv[1]](Path(sys.argv[2]))}\n")
