# SPDX-License-Identifier: Apache-2.0
"""Scheduling stalls, measured beside a drill, or a test: a machine that stood still is not a fault of the product."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import time

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from dsv41_rehearse.drills.stallwatch import BYTES, HEAD, KEPT, KEPT_NS, STALL
from dsv41_rehearse.drills.timed import Window


NAP_S: Final = 0.01  # costs half a percent of each processor
_NAP_NS: Final = int(NAP_S * 1e9)
MOST_WATCHERS: Final = 8
_START_S: Final = 5.0


class Stalls:
    """
    A context manager: beside it, a small process on each processor naps and notes each nap that was too long by 5 ms or more.

    A stall is measured as shorter than it was by a nap at most. ``processes``: those that measure.
    """

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._began_ns = self._ended_ns = 0
        self._notes: mmap.mmap | bytes = b""

    def __enter__(self) -> Stalls:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begin to measure; returns once all of them do."""
        cpus = sorted(os.sched_getaffinity(0))[:MOST_WATCHERS]
        with tempfile.TemporaryFile() as file:
            file.truncate(len(cpus) * BYTES)
            self._notes = mmap.mmap(file.fileno(), 0)
            for number, cpu in enumerate(cpus):
                self.processes.append(self._watcher(file.fileno(), number * BYTES, cpu))
        # What stalls them before their first note is seen by nobody.
        until = time.monotonic() + _START_S
        while not all(last for _, last in self._heads()) and time.monotonic() < until:
            time.sleep(0.001)
        self.begin()

    def close(self) -> None:
        """End them; what was noted can still be asked for."""
        for process in self.processes:
            process.kill()
            process.wait()
        self._ended_ns = time.monotonic_ns()
        if isinstance(self._notes, mmap.mmap):
            noted, self._notes = self._notes, bytes(self._notes)
            noted.close()

    def _watcher(self, fd: int, at: int, cpu: int) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).with_name("stallwatch.py"))
        words = [str(word) for word in (fd, at, cpu, _NAP_NS, os.getpid())]
        # Without our variables it carries no mark of ours: it belongs to no test and no drill.
        return subprocess.Popen([sys.executable, "-I", "-S", script, *words], pass_fds=[fd], env={})

    def begin(self) -> None:
        """Forget what was."""
        self._began_ns = time.monotonic_ns()

    def longest_ms(self, window: Window | None = None) -> float:
        """
        Return the longest since ``begin``, or the most that one has of a window; one that is not over counts as far as it went.

        Stalls of several processors that overlap are one, and those a nap apart: in between nothing was measured. But one shorter than a
        nap is itself alone: where others keep the processors busy nap after nap is late by so much, and nothing stood still.
        """
        since_ns, until_ns = window or Window(self._began_ns, time.monotonic_ns())
        longest, one = 0, Window(0, 0)
        for since, until in sorted(self._all()):
            start, end = max(since, since_ns), min(until, until_ns)
            if start < end and until - since >= _NAP_NS:
                one = Window(one.since_ns if start <= one.until_ns + _NAP_NS else start, max(one.until_ns, end))
                longest = max(longest, one.until_ns - one.since_ns)
            longest = max(longest, end - start)
        return longest / 1e6

    def summed_ms(self, window: Window | None = None) -> float:
        """
        Return how long one processor stood still in all, the one that did the longest: for what takes no stall for time that passed.

        Those shorter than a nap are left out: a busy machine has them all the time, and a watchdog's tick or two are as long.
        """
        since_ns, until_ns = window or Window(self._began_ns, time.monotonic_ns())
        sums = [
            sum(
                max(0, min(until, until_ns) - max(since, since_ns))
                for since, until in self._of(number, head)
                if until - since >= _NAP_NS
            )
            for number, head in enumerate(self._heads())
        ]
        return max(sums, default=0) / 1e6

    def _heads(self) -> list[tuple[int, int]]:
        return [HEAD.unpack_from(self._notes, number * BYTES) for number in range(len(self.processes))]

    def _all(self) -> Iterator[tuple[int, int]]:
        for number, head in enumerate(self._heads()):
            yield from self._of(number, head)

    def _of(self, number: int, head: tuple[int, int]) -> Iterator[tuple[int, int]]:
        now, at, (count, last) = self._ended_ns or time.monotonic_ns(), number * BYTES + HEAD.size, head
        for index in range(max(0, count - KEPT), count):
            yield STALL.unpack_from(self._notes, at + index % KEPT * STALL.size)
        # One that is not over yet. Whoever measures and is gone notes nothing any more, and nothing stood still for that.
        there = self._ended_ns or self.processes[number].poll() is None
        if there and last and now - last - _NAP_NS >= KEPT_NS:
            yield last + _NAP_NS, now
