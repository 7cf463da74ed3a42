# SPDX-License-Identifier: Apache-2.0
"""The log's way out. A reader that went away, or a full disk, must not take the daemon with it."""

from __future__ import annotations

import io
import os
import sys

from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Callable


FD: Final = 2


class Stderr(io.TextIOBase):
    """
    Standard error, a line a write. What the descriptor does not take is counted in ``lost``, never raised.

    ``on_lost``: told how many lines were lost and why, as soon as the descriptor takes lines again. ``note``: the same in words for
    people, empty while it takes them.
    """

    def __init__(self, on_lost: Callable[[int, str], None] | None = None) -> None:
        super().__init__()
        self._pending: list[str] = []
        self.lost = 0
        self._untold = 0
        self._reason = ""
        self._cut = False  # a line was written in part
        self._on_lost = on_lost

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
            return
        untold, self._untold = self._untold, 0
        if untold and self._on_lost is not None:
            self._on_lost(untold, self._reason)

    @property
    def note(self) -> str:
        """What to say of it elsewhere than in the log."""
        return f"{self._untold} lines of the log were lost: {self._reason}" if self._untold else ""

    def isatty(self) -> bool:
        return os.isatty(FD)


def notes() -> tuple[str, ...]:
    """Return what is to be said of this process's log, if anything."""
    log = sys.stderr
    return (log.note,) if isinstance(log, Stderr) and log.note else ()


def fill_standard_descriptors() -> None:
    """Open /dev/null where 0, 1 or 2 is closed: the next file or socket would get that number, and the log with it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= FD:
        os.set_inheritable(fd, True)
    os.close(fd)
