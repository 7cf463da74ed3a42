# SPDX-License-Identifier: Apache-2.0
"""The log's way out, as the daemon's (proxyd/service/stderr.py, which no worker may need): a full disk costs lines, not the worker."""

from __future__ import annotations

import io
import os
import sys

from typing import Final


FD: Final = 2


class Stderr(io.TextIOBase):
    """Standard error, a line a write. What the descriptor does not take is counted, never raised."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[str] = []
        self._lost = 0
        self._reason = ""
        self._takes = True  # the newest line was written
        self._cut = False  # a line was written in part

    def write(self, text: str) -> int:
        self._pending.append(text)
        return len(text)

    def flush(self) -> None:
        rest = "".join(self._pending).encode("utf-8", "backslashreplace")
        self._pending.clear()
        if not rest:
            return
        try:
            if self._cut:
                os.write(FD, b"\n")
                self._cut = False
            while rest:
                written = os.write(FD, rest)
                self._cut = written < len(rest)
                rest = rest[written:]
        except OSError as fault:
            self._lost += 1
            self._reason = fault.strerror or str(fault)
            self._takes = False
            return
        self._takes = True

    def take_lost(self) -> tuple[int, str] | None:
        """
        Return once how many lines were lost and why, as soon as lines are taken again.

        Not from within a write: whoever logs holds its logger's lock there.
        """
        if not self._lost or not self._takes:
            return None
        lost, self._lost = self._lost, 0
        return lost, self._reason

    def isatty(self) -> bool:
        return os.isatty(FD)


def take_lost() -> tuple[int, str] | None:
    """Return what ``Stderr.take_lost`` does of this process's log."""
    log = sys.stderr
    return log.take_lost() if isinstance(log, Stderr) else None


def fill_standard_descriptors() -> None:
    """Open /dev/null where 0, 1 or 2 is closed: the next socket would get that number, and the log with it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= FD:
        os.set_inheritable(fd, True)
    os.close(fd)
