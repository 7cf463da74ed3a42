# SPDX-License-Identifier: Apache-2.0
"""CUDA without a GPU, for tests: the stand-in for libcuda (fakecuda.c), built once, and a stream on it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine_harness import PATIENCE_S, until

from engine_shim import CudaDriver, CudaStream


TESTS: Final = Path(__file__).resolve().parent
FLAGS: Final = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")


@functools.cache
def library() -> Path:
    """Return the stand-in's path. It stays for the whole run: a process may open it at any time."""
    directory = Path(tempfile.mkdtemp(prefix="dsv41-cuda", dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "libcuda-stand-in.so"
    source = TESTS / "fakecuda.c"
    command = [
        "cc",
        *FLAGS,
        "-shared",
        "-fPIC",
        "-pthread",
        f"-I{TESTS.parent / 'native'}",
        str(source),
        "-o",
        str(path),
    ]
    subprocess.run(command, check=True)
    return path


class Fake:
    """The tests' hand on the stand-in of this process."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL(str(library()))
        self._lib.fake_held_up.restype = ctypes.c_uint64

    def corrupt(self, nth: int) -> None:
        """Let the ``nth`` copy from now on arrive with a wrong bit."""
        self._lib.fake_corrupt(nth)

    def freeze(self, *, on: bool) -> None:
        """Let no stream run anything more."""
        self._lib.fake_freeze(int(on))

    def stick(self, *, on: bool) -> None:
        """Let no wait end, whatever its word says."""
        self._lib.fake_stick(int(on))

    def queues(self, count: int) -> None:
        """Spread streams over so many queues in turn: one that is parked holds up those of its own. 0: each has one to itself."""
        self._lib.fake_queues(count)

    def capture(self, stream: CudaStream, *, on: bool) -> None:
        self._lib.fake_capture(ctypes.c_void_p(stream.handle), int(on))

    @property
    def captures_broken(self) -> int:
        """How many captures were spoilt by a call elsewhere, ever."""
        return int(self._lib.fake_captures_broken())

    def attribute(self, number: int, value: int) -> None:
        self._lib.fake_attribute(number, value)

    @property
    def parked(self) -> int:
        """How many streams wait for a word."""
        return int(self._lib.fake_parked())

    @property
    def held_up(self) -> int:
        """How many calls have had to wait in the driver for a parked stream, ever."""
        return int(self._lib.fake_held_up())

    @property
    def registered(self) -> int:
        """How many regions are registered."""
        return int(self._lib.fake_registered())


@dataclass(frozen=True)
class Cuda:
    """A driver of a test's own, on the process's stand-in, and a stream."""

    fake: Fake
    driver: CudaDriver
    stream: CudaStream

    def drained(self) -> None:
        assert self.stream.wait(self.stream.marker(), PATIENCE_S), "the stream is past everything"

    def parks(self) -> None:
        """Wait until a stream is parked."""
        until(lambda: self.fake.parked, "a parked stream")


@contextlib.contextmanager
def cuda(copies: int = 0) -> Iterator[Cuda]:
    """Give a stream on the stand-in; whatever was done to it is undone at the end."""
    fake, driver = Fake(), CudaDriver(str(library()))
    driver.use_primary()
    stream = CudaStream.create(driver=driver, copies=copies)
    try:
        yield Cuda(fake, driver, stream)
    finally:
        driver.fail_nth(0, 0)
        fake.corrupt(0)
        fake.stick(on=False)
        fake.queues(0)
        fake.freeze(on=False)
        stream.close(PATIENCE_S)
