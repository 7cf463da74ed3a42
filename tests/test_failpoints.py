# SPDX-License-Identifier: Apache-2.0
"""Failpoints are in the test build of the daemon's module, and nowhere else."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess

from pathlib import Path
from typing import Final

import pytest

from dsv41_rehearse.drills.failpoints import FILE_VARIABLE, POINTS, NoFailpointsError, build
from proxyd import _daemon


ROOT: Final = Path(__file__).resolve().parent.parent
NATIVE: Final = ROOT / "native"
CALLED: Final = re.compile(r"^\s*HFD_FAILPOINT\((\w+)\);", re.MULTILINE)
# Of the functions and of the variable; "failpoints.h" alone is a line of the debugger's.
TRACES: Final = (b"hfd_failpoint", FILE_VARIABLE.encode())


def expanded(source: Path, *flags: str) -> str:
    """Return a C file as the compiler sees it."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    command = ["gcc", "-E", "-P", "-std=gnu11", "-D_GNU_SOURCE", *flags, f"-I{NATIVE}", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_loop_has_the_points_that_the_drill_names_once_each() -> None:
    named = [name for path in sorted(NATIVE.glob("[!_]*.c")) for name in CALLED.findall(path.read_text())]
    assert sorted(named) == sorted(POINTS)
    assert len(POINTS) == 8


def test_the_shipped_module_is_free_of_them() -> None:
    assert _daemon.__file__ is not None
    shipped = Path(_daemon.__file__).read_bytes()
    assert [trace for trace in TRACES if trace in shipped] == []
    assert "failpoints.c" not in runpy.run_path(str(NATIVE / "build_ffi.py"))["DAEMON"].sources


@pytest.mark.parametrize("name", ["round.c", "roundloop.c"])
def test_a_point_expands_to_nothing(tmp_path: Path, name: str) -> None:
    """What the compiler sees is what it would see if the lines were not there."""
    text = (NATIVE / name).read_text()
    without = tmp_path / name
    without.write_text(re.sub(r"HFD_FAILPOINT(_BEAT)?\(\w*\)", "", text))
    assert without.read_text() != text
    assert expanded(NATIVE / name) == expanded(without)
    assert "hfd_failpoint" in expanded(NATIVE / name, "-DHFD_FAILPOINTS")


def test_the_test_build_has_them() -> None:
    try:
        made = build()
    except NoFailpointsError as error:
        pytest.skip(str(error))
    assert all(trace in made.read_bytes() for trace in TRACES)
    assert _daemon.__file__ is not None
    assert made.resolve() != Path(_daemon.__file__).resolve()
