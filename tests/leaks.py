# SPDX-License-Identifier: Apache-2.0
"""
What a test module may leave behind: nothing. Processes, zombies, threads, fds, mapped memfds, temporary files.

Processes are known by a mark in their environment, so a grandchild that lost its parents is found and a neighbour's
daemon on the same machine is not.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing.resource_tracker
import os
import signal
import sys
import tempfile
import time

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final


MARK: Final = "DSV41_TEST_RUN"
GRACE_S: Final = 5.0  # a process that was told to end is still seen for a moment


@dataclass(frozen=True)
class Held:
    """What this process and its descendants hold, each as lines for people."""

    processes: frozenset[str]
    threads: frozenset[str]
    fds: frozenset[str]
    maps: frozenset[str]
    files: frozenset[str]
    numpy: bool  # its thread pool comes with its first import and stays

    def since(self, before: Held) -> list[str]:
        """Return what was not held before."""
        new = [*(self.processes - before.processes), *(self.fds - before.fds), *(self.maps - before.maps)]
        threads = self.threads - before.threads if self.numpy == before.numpy else ()
        return sorted([*new, *threads, *(self.files - before.files)])


def marked_processes() -> dict[int, str]:
    """Return the command lines, by pid, of the living processes that carry our mark, other than this one."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is not ours to read
            if int(process.name) != os.getpid() and mark in process.joinpath("environ").read_bytes().split(b"\0"):
                command = process.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if "multiprocessing.resource_tracker" not in command:
                    found[int(process.name)] = command.strip()
    return found


def zombies() -> Iterator[str]:
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, _, rest = status.read_text(errors="replace").rpartition(")")
            state, parent = rest.split()[:2]
            if state == "Z" and int(parent) == os.getpid():
                yield f"zombie {pid})"


def fds() -> Iterator[str]:
    tracker = getattr(multiprocessing.resource_tracker, "_resource_tracker", None)
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if fd.name != str(getattr(tracker, "_fd", None)):
                yield f"fd {fd.name} -> {fd.readlink()}"


def threads() -> Iterator[str]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            yield f"thread {task.name} {task.joinpath('comm').read_text().strip()}"


def held() -> Held:
    gc.collect()
    processes = {f"process {pid} {command}" for pid, command in marked_processes().items()}
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return Held(
        frozenset(processes.union(zombies())),
        frozenset(threads()),
        frozenset(fds()),
        frozenset(f"map {line}" for line in maps if "memfd:" in line),
        frozenset(f"file {path}" for path in Path(tempfile.gettempdir()).iterdir()),
        "numpy" in sys.modules,
    )


def left_since(before: Held) -> list[str]:
    """Return what is held now and was not before, once it had time to go. Ends the processes among it."""
    until = time.monotonic() + GRACE_S
    while (left := held().since(before)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid, command in marked_processes().items():
        if f"process {pid} {command}" in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return left
