# SPDX-License-Identifier: Apache-2.0
"""Failpoints are in the test builds of the C modules, and nowhere else."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess

from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from dsv41_rehearse.drills.failpoints import FILE_VARIABLE, POINTS, WATCHDOG_POINT, Module, NoFailpointsError, build
from engine_shim import _engine
from proxyd import _daemon


ROOT: Final = Path(__file__).resolve().parent.parent
NATIVE: Final = ROOT / "native"
CALLED: Final = re.compile(r"^\s*HF_FAILPOINT\((\w+)\);", re.MULTILINE)
# Of the functions and of the variable; "failpoints.h" alone is a line of the debugger's.
TRACES: Final = (b"hf_failpoint", FILE_VARIABLE.encode())


def expanded(source: Path, *flags: str) -> str:
    """Return a C file as the compiler sees it."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    command = ["gcc", "-E", "-P", "-std=gnu11", "-D_GNU_SOURCE", *flags, f"-I{NATIVE}", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_sources_have_the_points_that_drills_name_once_each() -> None:
    named = [name for path in sorted(NATIVE.glob("[!_]*.c")) for name in CALLED.findall(path.read_text())]
    assert sorted(named) == sorted([*POINTS, WATCHDOG_POINT])
    assert len(POINTS) == 8


@pytest.mark.parametrize("module", [_daemon, _engine])
def test_the_shipped_modules_are_free_of_them(module: ModuleType) -> None:
    assert module.__file__ is not None
    shipped = Path(module.__file__).read_bytes()
    assert [trace for trace in TRACES if trace in shipped] == []


def test_their_code_is_no_part_of_a_shipped_module() -> None:
    modules = runpy.run_path(str(NATIVE / "build_ffi.py"))["MODULES"]
    assert not any("failpoints.c" in module.sources for module in modules)


@pytest.mark.parametrize("name", ["round.c", "roundloop.c", "watch.c"])
def test_a_point_expands_to_nothing(tmp_path: Path, name: str) -> None:
    """What the compiler sees is what it would see if the lines were not there."""
    text = (NATIVE / name).read_text()
    without = tmp_path / name
    without.write_text(re.sub(r"HF_FAILPOINT(_BEAT)?\(\w*\)", "", text))
    assert without.read_text() != text
    assert expanded(NATIVE / name) == expanded(without)
    assert "hf_failpoint" in expanded(NATIVE / name, "-DHF_FAILPOINTS")


@pytest.mark.parametrize("module", ["proxyd._daemon", "engine_shim._engine"])
def test_the_test_builds_have_them(module: Module) -> None:
    try:
        name, _, path = build(module).partition("=")
    except NoFailpointsError as error:
        pytest.skip(str(error))
    assert name == module
    assert all(trace in Path(path).read_bytes() for trace in TRACES)
    assert Path(path).parent not in {ROOT / "proxyd", ROOT / "engine_shim"}
