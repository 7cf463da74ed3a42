# SPDX-License-Identifier: Apache-2.0
"""The bare C programs: compiled where they run, then spoken to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final


HERE: Final = Path(__file__).resolve().parent
FLAGS: Final = ("-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror")


class BareError(Exception):
    """A bare program cannot be built or does not answer; the message says why."""


class NoSuchCase(BareError):
    """The program was built without it."""


def toolkit() -> Path:
    """Return where CUDA's headers are. Raises BareError where they are not."""
    for place in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if place and (Path(place) / "include" / "cuda.h").exists():
            return Path(place)
    raise BareError("no cuda.h: the bare programs need the CUDA toolkit's headers (CUDA_HOME, /usr/local/cuda)")


def build(program: Path, to: Path) -> Path:
    """Compile a C program of the bench into the directory ``to``; return where it is. Raises BareError."""
    target = to / program.stem
    extra = _runtime_part(program, to)
    command = [
        os.environ.get("CC", "gcc"), *FLAGS, f"-I{toolkit() / 'include'}", f"-I{HERE}", *(["-DWITH_RUNTIME"] if extra else []),
        str(program), *map(str, program.parent.glob(f"{program.stem}?*.c")), str(HERE / "cu.c"), *extra, "-o", str(target), "-pthread", "-ldl",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BareError(f"{program.name} does not compile: {ended.stderr}")
    return target


def _runtime_part(program: Path, to: Path) -> list[str]:
    """Compile what stands beside the program as .cu, with nvcc where there is one; return what it adds to the link."""
    sources = sorted(program.parent.glob("*.cu"))
    nvcc = shutil.which("nvcc") or shutil.which(str(toolkit() / "bin" / "nvcc"))
    if not sources or nvcc is None:
        return []
    objects = [str(to / f"{source.stem}.o") for source in sources]
    for source, built in zip(sources, objects, strict=True):
        ended = subprocess.run([nvcc, "-c", str(source), "-o", built], capture_output=True, text=True, check=False)
        if ended.returncode:
            raise BareError(f"{source.name} does not compile: {ended.stdout}{ended.stderr}")
    library = next(
        (str(path) for name in ("lib64", "lib") if (path := toolkit() / name / "libcudart_static.a").exists()), None
    )
    return [*objects, library or "-lcudart", "-lrt", "-lstdc++"]


def once(
    program: Path, arguments: Sequence[str], *, timeout_s: float, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """
    Run a program to its end; return the JSON line it prints. ``variables``: set in its environment beside ours.

    Raises BareError where it fails, prints none, or takes longer than ``timeout_s``: then it is killed.
    """
    named = " ".join([program.name, *arguments])
    try:
        ended = subprocess.run(
            [str(program), *arguments], capture_output=True, text=True, check=False, timeout=timeout_s,
            env=os.environ | dict(variables or {}),
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        raise BareError(f"{named}: killed after {timeout_s:g} s") from expired
    if ended.returncode:
        raise BareError(f"{named}: status {ended.returncode}: {ended.stderr.strip()}")
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


class Floor:
    """The program floor.c, kept running so that its blocks lie between those of others. As a context manager it ends with it."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def pin(self, cpu: int) -> None:
        """Have its engine's thread on this processor; its responder stays where it may be. Raises BareError."""
        self.measure("empty", 2)  # by then it has its responder and its driver's threads
        os.sched_setaffinity(self._process.pid, {cpu})

    def __enter__(self) -> Floor:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def measure(self, case: str, rounds: int, requests: int = 1, pause_us: int = 0) -> tuple[list[float], list[float]]:
        """Return submit and total of so many rounds, us; the responder waits ``pause_us`` in each. Raises BareError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{case} {rounds} {requests} {pause_us}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BareError(f"the bare program ended in {case} with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NoSuchCase(f"{case}: {answer['error']}")
        return [ns / 1e3 for ns in answer["submit_ns"]], [ns / 1e3 for ns in answer["total_ns"]]
