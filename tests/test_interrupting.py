# SPDX-License-Identifier: Apache-2.0
"""Interrupted anywhere, shims and rehearsals leave nothing behind that the stream still uses, and end in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from pathlib import Path

import pytest

from interrupting import WHAT

from dsv41_rehearse import interrupts


@pytest.mark.parametrize(("what", "times"), [("closing", 100), ("starting", 5), ("rehearsals", 100)])
def test_interrupted_at_any_line(short_dir: Path, root: Path, what: str, times: int) -> None:
    assert what in WHAT
    done = subprocess.run(
        [sys.executable, "tests/interrupting.py", what, str(short_dir)],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": f"{root}:{root / 'tests'}",
            "PYTHONFAULTHANDLER": "1",
            # What is freed is unmapped at once: using it is a segmentation fault, not luck.
            "MALLOC_MMAP_THRESHOLD_": "32768",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= times, "lines that were interrupted"


def test_one_signal_is_enough() -> None:
    """The next ones still have a handler: Python tells with a traceback of a signal whose handler is taken away as it comes."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in interrupts.ENDING}
    try:
        with interrupts.heeded():
            with pytest.raises(interrupts.TerminatedError):
                signal.raise_signal(signal.SIGTERM)
            for number in interrupts.ENDING:
                signal.raise_signal(number)
                assert callable(signal.getsignal(number))
        # The process is about to end: what comes now does not cut that short.
        assert all(signal.getsignal(number) is signal.SIG_IGN for number in interrupts.ENDING)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_where_none_came_all_is_as_before() -> None:
    before = {number: signal.getsignal(number) for number in interrupts.ENDING}
    with interrupts.heeded():
        pass
    assert {number: signal.getsignal(number) for number in interrupts.ENDING} == before
