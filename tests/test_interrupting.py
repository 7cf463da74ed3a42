# SPDX-License-Identifier: Apache-2.0
"""Interrupted anywhere, shims and rehearsals leave nothing behind that the stream still uses, and end in order."""

from __future__ import annotations

import os
import subprocess
import sys

from pathlib import Path

import pytest

from interrupting import WHAT


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
