# SPDX-License-Identifier: Apache-2.0
"""The engine's C under load, with sanitizers: no data race, no bad memory access, no leak, no wrong row or draft."""

from __future__ import annotations

import json
import os
import runpy
import subprocess

from pathlib import Path
from typing import Any, Final

import pytest


ROOT: Final = Path(__file__).resolve().parent.parent
PROGRAMS: Final = ("engine_stress", "engine_adopt")
STEPS: Final = "3000"
# TSan does not model fences. Ours order only who sleeps against who wakes; a mistake there hangs, it does not race.
SANITIZERS: Final = {"thread": ["-Wno-tsan"], "address,undefined": ["-fno-sanitize-recover=all"]}


def compile_with(sanitizer: str, sources: list[Path], target: Path) -> subprocess.CompletedProcess[str]:
    flags = [
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-O1",
        "-g",
        "-fno-omit-frame-pointer",
        "-pthread",
        f"-fsanitize={sanitizer}",
    ]
    command = [os.environ.get("CC", "cc"), *flags, *SANITIZERS[sanitizer], f"-I{ROOT / 'native'}", *map(str, sources)]
    return subprocess.run([*command, "-o", str(target)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", params=list(SANITIZERS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where PROGRAMS are, built with a sanitizer. Skips where this machine has none that runs."""
    directory = tmp_path_factory.mktemp("stress")
    empty = directory / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    probe = compile_with(request.param, [empty], directory / "empty")
    if probe.returncode or subprocess.run([directory / "empty"], capture_output=True, check=False).returncode:
        pytest.skip(f"no {request.param} sanitizer that works here: {probe.stderr.strip()[-200:]}")
    module: Any = runpy.run_path(str(ROOT / "native" / "build_ffi.py"))["ENGINE"]
    sources = [ROOT / "native" / name for name in module.sources]
    for name in PROGRAMS:
        ended = compile_with(request.param, [ROOT / "tests" / f"{name}.c", *sources], directory / name)
        assert ended.returncode == 0, ended.stderr
    return directory


def outcome_of(*command: Path | str) -> dict[str, int]:
    """Run a program that finds no fault; return what it counted."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert ended.stderr == ""
    assert ended.returncode == 0
    result: dict[str, int] = json.loads(ended.stdout)
    assert result["faults"] == 0
    return result


@pytest.mark.parametrize("seed", [0, 1, 2, 5], ids=["clean end", "hang-up", "failed submit", "failed submit, hang-up"])
def test_nothing_is_wrong_under_load(built: Path, seed: int) -> None:
    result = outcome_of(built / "engine_stress", STEPS, str(seed))
    assert min(result["ok"], result["rows"], result["deferred"]) > 0, "it went through the motions"


@pytest.mark.parametrize("sync", [0, 1], ids=["async", "sync"])
def test_sessions_change_under_an_engine_thread_that_goes_on(built: Path, sync: int) -> None:
    result = outcome_of(built / "engine_adopt", "80", str(sync))
    assert min(result["ok"], result["lost"], result["target_only"]) > 0, "it went through the motions"
