# SPDX-License-Identifier: Apache-2.0
"""Control groups, version 1 or 2, whichever can be made here: to freeze processes, and to give them a share of a processor."""

from __future__ import annotations

import os
import time

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Literal


Kind = Literal["freezer", "cpu"]
_MOUNTS: Final = Path("/proc/self/mounts")
_DONE_S: Final = 5.0


class NoCgroupError(Exception):
    """No control group of this kind can be made here; the message says why."""


class Group:
    """
    A context manager: a control group of its own below the root, with ``pids`` in it. At its end they are thawed and back.

    ``threads``: they are single threads, not processes. ``version``: 1 or 2. Raises NoCgroupError.
    """

    def __init__(self, kind: Kind, pids: Iterable[int], *, threads: bool = False) -> None:
        self._kind, self._pids = kind, list(pids)
        self.version, self._root = _root(kind)
        if threads and self.version != 1:
            raise NoCgroupError(f"a single thread has no group of its own below {self._root}: that takes version 1")
        self._list = "tasks" if threads else "cgroup.procs"
        self._path = self._root / f"dsv41-drill-{os.getpid()}-{'-'.join(map(str, self._pids))}"
        self._frozen = False

    def __enter__(self) -> Group:
        try:
            self._path.mkdir()
            for pid in self._pids:
                (self._path / self._list).write_text(str(pid))
        except OSError as error:
            self._remove()
            raise NoCgroupError(f"no control group below {self._root}: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._frozen:
            self.thaw()
        self._remove()

    def _remove(self) -> None:
        for pid in self._pids:
            with suppress(OSError):  # it may have ended
                (self._root / self._list).write_text(str(pid))
        with suppress(FileNotFoundError):
            self._path.rmdir()

    def freeze(self) -> None:
        """Stop every thread of its processes where it is. Returns once they all are. Raises TimeoutError."""
        self._frozen = True
        if self.version == 1:
            (self._path / "freezer.state").write_text("FROZEN")
            self._await("freezer.state", "FROZEN")
        else:
            (self._path / "cgroup.freeze").write_text("1")
            self._await("cgroup.events", "frozen 1")

    def thaw(self) -> None:
        """Let them go on."""
        if self.version == 1:
            (self._path / "freezer.state").write_text("THAWED")
        else:
            (self._path / "cgroup.freeze").write_text("0")
        self._frozen = False

    def quota(self, percent: float, period_ms: float = 100.0) -> None:
        """Give its processes so much of one processor, in all, in each period."""
        period_us = int(period_ms * 1e3)
        us = int(period_us * percent / 100)
        if self.version == 1:
            (self._path / "cpu.cfs_period_us").write_text(str(period_us))
            (self._path / "cpu.cfs_quota_us").write_text(str(us))
        else:
            (self._path / "cpu.max").write_text(f"{us} {period_us}")

    def throttled(self) -> int:
        """Return in how many periods its processes had to wait for the next one."""
        lines = (self._path / "cpu.stat").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("nr_throttled ")), 0)

    def _await(self, file: str, state: str) -> None:
        until = time.monotonic() + _DONE_S
        while state not in (self._path / file).read_text():
            if time.monotonic() > until:
                raise TimeoutError(f"{self._path} was not {state} within {_DONE_S:g} s")
            time.sleep(0.001)


def _root(kind: Kind) -> tuple[int, Path]:
    """Return version and mount point of the hierarchy that can do it, the older one first: where it is, it has the controller."""
    mounts = [line.split() for line in _MOUNTS.read_text().splitlines()]
    for _, where, system, options, *_ in mounts:
        if system == "cgroup" and kind in options.split(","):
            return 1, _writable(Path(where))
    for _, where, system, *_ in mounts:
        if system == "cgroup2" and (kind == "freezer" or kind in (Path(where) / "cgroup.subtree_control").read_text()):
            return 2, _writable(Path(where))
    raise NoCgroupError(f"no control group hierarchy with {kind} is mounted")


def _writable(root: Path) -> Path:
    if not os.access(root, os.W_OK):
        raise NoCgroupError(f"{root} is not ours to write: root only")
    return root
