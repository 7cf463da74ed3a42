# SPDX-License-Identifier: Apache-2.0
"""Waking the watchdog is for everybody: model/handoff.pml found a round without a deadline where only the first one rang."""

from __future__ import annotations

import json
import os
import runpy
import subprocess

from pathlib import Path
from typing import Any, Final


ROOT: Final = Path(__file__).resolve().parent.parent


def test_whoever_finds_it_at_rest_rings(tmp_path: Path) -> None:
    module: Any = runpy.run_path(str(ROOT / "native" / "build_ffi.py"))["ENGINE"]
    sources = [str(ROOT / "native" / name) for name in module.sources]
    program = str(tmp_path / "wake")
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-pthread", f"-I{ROOT / 'native'}"]
    command = [os.environ.get("CC", "cc"), *flags, str(ROOT / "tests" / "watchdog_wake.c"), *sources, "-ldl"]
    subprocess.run([*command, "-o", program], check=True)
    ended = subprocess.run([program], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == {"running": 0, "resting": 1, "again": 1, "trusted": 0}
