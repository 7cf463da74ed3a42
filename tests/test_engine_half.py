# SPDX-License-Identifier: Apache-2.0
"""A session may last: its rounds are its own however many there were before them."""

from __future__ import annotations

import json
import os
import runpy
import subprocess

from pathlib import Path
from typing import Any, Final

import pytest


ROOT: Final = Path(__file__).resolve().parent.parent
MADE: Final = 20 * 24


@pytest.mark.compute
def test_a_session_of_more_rounds_than_the_counter_has(tmp_path: Path) -> None:
    module: Any = runpy.run_path(str(ROOT / "native" / "build_ffi.py"))["ENGINE"]
    sources = [str(ROOT / "native" / name) for name in module.sources]
    program = str(tmp_path / "half")
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-O1", f"-I{ROOT / 'native'}"]
    command = [os.environ.get("CC", "cc"), *flags, str(ROOT / "tests" / "engine_half.c"), *sources, "-ldl"]
    subprocess.run([*command, "-o", program], check=True)
    ended = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(ended.stdout) == {"made": MADE, "unknown": 0, "early": 0, "unbooked": 0, "lost": 0}
