# SPDX-License-Identifier: Apache-2.0
"""Slot and ring are freed by one and the same look at retired, whenever the daemon retires."""

from __future__ import annotations

import json
import os
import runpy
import subprocess

from pathlib import Path
from typing import Any, Final

import pytest


ROOT: Final = Path(__file__).resolve().parent.parent


@pytest.mark.compute
def test_a_round_that_is_retired_in_the_middle_of_a_submit(tmp_path: Path) -> None:
    module: Any = runpy.run_path(str(ROOT / "native" / "build_ffi.py"))["ENGINE"]
    sources = [str(ROOT / "native" / name) for name in module.sources]
    program = str(tmp_path / "retired")
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-pthread", "-O1", f"-I{ROOT / 'native'}", "-Wl,--wrap=hf_now_ns"]
    command = [os.environ.get("CC", "cc"), *flags, str(ROOT / "tests" / "engine_retired.c"), *sources, "-ldl"]
    subprocess.run([*command, "-o", program], check=True)
    ended = subprocess.run([program], capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(ended.stdout)
    assert (found["shared"], found["early"]) == (0, 0)
    assert found["in_use"] <= 4
    assert found["rounds"] > 1000
