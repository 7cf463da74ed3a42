# SPDX-License-Identifier: Apache-2.0
"""
The C modules as Python loads them, under the address and undefined-behaviour sanitizers: the tests that feed them most, run once more.

In a copy of the tree, so that the modules in place, which other processes have mapped, stay what they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from pathlib import Path
from typing import Final

import pytest


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # compilers and sanitizers on a busy machine
ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("hostflag", "engine_shim", "proxyd", "native", "tests")
TESTS: Final = ("test_region", "test_wire", "test_roundwire", "test_roundloop", "test_engine_rounds", "test_softstream")
FLAGS: Final = "-fsanitize=address,undefined -fno-sanitize-recover=all"
MODULES: Final = ("hostflag._hostflag", "engine_shim._engine", "proxyd._daemon")


def preload() -> str:
    """Return the sanitizers' libraries, which must come before everything that Python loads."""
    compiler = os.environ.get("CC", "cc")
    names = ("libasan.so", "libubsan.so")
    asked = [
        subprocess.run([compiler, f"-print-file-name={n}"], capture_output=True, text=True, check=True) for n in names
    ]
    found = [answer.stdout.strip() for answer in asked]
    if all(Path(path).is_absolute() for path in found):
        return " ".join(found)
    assert "CI" not in os.environ
    pytest.skip(f"{compiler} comes without {' and '.join(names)}")


def run(copy: Path, *command: str, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, *command],
        cwd=copy,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return ended.stdout


def test_the_modules_under_the_sanitizers(short_dir: Path) -> None:
    libraries = preload()
    for package in PACKAGES:
        shutil.copytree(ROOT / package, short_dir / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", short_dir)
    run(short_dir, "native/build_ffi.py", "--inplace", *MODULES, CFLAGS=f"{FLAGS} -O1", LDFLAGS=FLAGS)
    watched = {"LD_PRELOAD": libraries, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    where = "import importlib as i, sys; print([i.import_module(name).__file__ for name in sys.argv[1:]])"
    assert run(short_dir, "-c", where, *MODULES, **watched).count(str(short_dir)) == len(MODULES), (
        "those of the copy are tested"
    )
    told = run(
        short_dir, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{name}.py" for name in TESTS), **watched
    )
    assert " passed" in told
