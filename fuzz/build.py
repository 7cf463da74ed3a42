# SPDX-License-Identifier: Apache-2.0
"""Builds the fuzzers in C from the product's own sources, with sanitizers, into a folder of their own: never in place."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import tempfile

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fuzz.targets import NATIVE, ROOT, Target


PRODUCT: Final = ROOT / "native"
SANITIZERS: Final = "address,undefined"
# Of build_ffi.py's flags less what only a module needs. Types are punned by the fake libzmq as by the real one.
FLAGS: Final = (
    *("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"),
    *("-fno-strict-aliasing", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"),
)


class CannotBuild(Exception):
    """The compiler that is needed is not here; the message says what to install."""


def product_sources() -> list[Path]:
    """Return what the daemon's module and the shared one are made of, as build_ffi.py lists it."""
    modules = runpy.run_path(str(PRODUCT / "build_ffi.py"))
    return sorted({PRODUCT / name for key in ("SHARED", "DAEMON") for name in modules[key].sources})


def fuzzing_clang() -> str:
    """Return a clang that has libFuzzer. Raises CannotBuild."""
    clang = shutil.which("clang")
    if clang is None:
        raise CannotBuild("no clang here: apt-get install clang libclang-rt-dev")
    probe = subprocess.run(
        [clang, "-fsanitize=fuzzer,address", "-x", "c", "-", "-o", "/dev/null"],
        input="#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char *d, size_t n) { return d == 0 && n == 1; }\n",
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    if probe.returncode:
        raise CannotBuild(f"{clang} has no libFuzzer: apt-get install libclang-rt-{_major(clang)}-dev")
    return clang


def _major(clang: str) -> str:
    said = subprocess.run([clang, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d+)", said)
    return found[1] if found else "14"


def build(target: Target, folder: Path, product: Sequence[Path] | None = None) -> Path:
    """Return the fuzzer, built where it is missing or older than its sources. Raises CannotBuild, CalledProcessError."""
    return _build(target, folder / target.name, [fuzzing_clang(), "-fsanitize=fuzzer"], (), product)


def build_replay(target: Target, folder: Path) -> Path:
    """Return a program that runs the target on the files it is given, without libFuzzer. Raises CannotBuild, CalledProcessError."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise CannotBuild("no C compiler here: apt-get install gcc libc6-dev")
    return _build(target, folder / f"replay-{target.name}", [compiler], ("replay.c",), None)


def _build(
    target: Target, program: Path, compiler: Sequence[str], more: Sequence[str], product: Sequence[Path] | None
) -> Path:
    sources = [*(NATIVE / name for name in (*target.sources, *more)), *(product or product_sources())]
    objects = program.parent / f"objects-{Path(compiler[0]).name}"
    objects.mkdir(parents=True, exist_ok=True)
    headers = sources[-1].parent  # a patched copy brings its own
    compile_one = [*compiler, *FLAGS, f"-fsanitize={SANITIZERS}", f"-I{headers}", f"-I{NATIVE}", "-c"]
    newest = max(path.stat().st_mtime for folder in (headers, NATIVE) for path in folder.glob("*.h"))
    made = [_object(source, objects, compile_one, newest) for source in sources]
    if not _older(program, max(path.stat().st_mtime for path in made)):
        return program
    wrapped = (f"-Wl,--wrap={name}" for name in target.wrap)
    _make(program, [*compiler, f"-fsanitize={SANITIZERS}", "-pthread", *map(str, made), *wrapped, "-ldl"])
    return program


def _object(source: Path, folder: Path, compile_one: Sequence[str], newest_header: float) -> Path:
    """Compile one file, for all fuzzers: to wrap a function is the linker's business."""
    made = folder / f"{source.parent.name}-{source.stem}.o"
    if _older(made, max(newest_header, source.stat().st_mtime)):
        _make(made, [*compile_one, str(source)])
    return made


def _older(made: Path, than: float) -> bool:
    return not made.exists() or made.stat().st_mtime < than


def _make(made: Path, command: Sequence[str]) -> None:
    # Renamed when it is whole: another run may look at the same moment.
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        whole = Path(scratch) / made.name
        subprocess.run([*command, "-o", str(whole)], check=True, cwd=scratch)
        whole.rename(made)
