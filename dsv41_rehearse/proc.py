# SPDX-License-Identifier: Apache-2.0
"""What /proc says of a process: memory, CPU time, and what it holds open."""

from __future__ import annotations

import os
import time

from dataclasses import dataclass
from pathlib import Path
from typing import Final


_TICKS: Final = os.sysconf("SC_CLK_TCK")
SHM_DIRECTORY: Final = Path("/dev/shm")  # noqa: S108 only looked at
_SHARED: Final = ("/memfd:", f"{SHM_DIRECTORY}/", "/SYSV")


@dataclass(frozen=True)
class Footprint:
    """What a process holds: numbers of descriptors, maps, threads; ``shared_memory``: maps and descriptors of memfds."""

    fds: int
    maps: int
    threads: int
    shared_memory: int

    def grown(self, before: Footprint) -> list[str]:
        """
        Return what is left over against ``before``, in words.

        Plain maps are not judged: the C library's arenas and Python's own come and go.
        """
        pairs = (
            ("fds", self.fds, before.fds),
            ("threads", self.threads, before.threads),
            ("shared memory", self.shared_memory, before.shared_memory),
        )
        return [f"{name}: {was} before, {now} after" for name, now, was in pairs if now > was]


def footprint(pid: int | None = None) -> Footprint:
    """Return what a process (None: this one) holds. Raises OSError where it is gone or not ours to look at."""
    base = Path(f"/proc/{os.getpid() if pid is None else pid}")
    links = [_link(entry) for entry in (base / "fd").iterdir()]
    held = [link for link in links if link is not None]
    maps = (base / "maps").read_text().splitlines()
    shared = sum(any(mark in line for mark in _SHARED) for line in (*maps, *held))
    # Listing fd/ opens one itself, gone by the time its link is read.
    return Footprint(len(held), len(maps), _entries(base / "task"), shared)


def _entries(directory: Path) -> int:
    return sum(1 for _ in directory.iterdir())


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return None


def rss_private_mib(pid: int) -> float:
    """Return RssAnon + RssFile, MiB: the memory that is the process's own; the mapped region counts as shared."""
    kib = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssFile:")):
            kib += int(line.split()[1])
    return round(kib / 1024, 2)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, ended threads included, to a tick (10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def threads_cpu_ns(pid: int) -> int:
    """Return the CPU time of a process's living threads, ns."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def cpu_percent_over(pid: int, seconds: float) -> float:
    """Watch a process for so long; return the share of one core that its threads used, percent."""
    began, before = time.monotonic(), threads_cpu_ns(pid)
    time.sleep(seconds)
    return round((threads_cpu_ns(pid) - before) / (time.monotonic() - began) / 1e7, 4)


def state(pid: int) -> str:
    """Return the letter of a process's state: "T" stopped, "Z" ended and not waited for; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def alive(pid: int) -> bool:
    """Whether the process exists and has not ended."""
    return state(pid) not in {"", "Z", "X"}


def shm_files() -> int:
    """Return how many files /dev/shm holds: shared memory that outlives its processes."""
    try:
        return _entries(SHM_DIRECTORY)
    except FileNotFoundError:
        return 0
