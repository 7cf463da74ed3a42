# SPDX-License-Identifier: Apache-2.0
"""The log's way out. A reader that went away, or a full disk, must not take daemon or worker with it."""

from __future__ import annotations

import io
import os
import sys

from typing import Final


FD: Final = 2


class Stderr(io.TextIOBase):
    """
    Standard error, a line a write. What the descriptor does not take is counted in ``lost``, never raised.

    ``note``: how many lines it did not take, and why, in words; empty while it takes them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[str] = []
        self.lost = 0
        self._untold = 0
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
            self.lost += 1
            self._untold += 1
            self._reason = fault.strerror or str(fault)
            self._takes = False
            return
        self._takes = True

    @property
    def note(self) -> str:
        """What to say of it elsewhere than in the log."""
        return f"{self._untold} lines of the log were lost: {self._reason}" if self._untold else ""

    def take_lost(self) -> tuple[int, str] | None:
        """
        Return once how many lines were lost and why, as soon as lines are taken again.

        Not from within a write: whoever logs holds its logger's lock there.
        """
        if not self._untold or not self._takes:
            return None
        untold, self._untold = self._untold, 0
        return untold, self._reason

    def isatty(self) -> bool:
        return os.isatty(FD)


def notes() -> tuple[str, ...]:
    """Return what is to be said of this process's log, if anything."""
    log = sys.stderr
    return (log.note,) if isinstance(log, Stderr) and log.note else ()


def take_lost() -> tuple[int, str] | None:
    """Return what ``Stderr.take_lost`` does of this process's log."""
    log = sys.stderr
    return log.take_lost() if isinstance(log, Stderr) else None


def fill_standard_descriptors() -> None:
    """Open /dev/null where 0, 1 or 2 is closed: the next file or socket would get that number, and the log with it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= FD:
        os.set_inheritable(fd, True)
    os.close(fd)
