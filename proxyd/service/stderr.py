# SPDX-License-Identifier: Apache-2.0
"""The log's way out. A reader that went away must not take the daemon with it."""

from __future__ import annotations

import io
import os

from typing import Final


FD: Final = 2


class Stderr(io.TextIOBase):
    """Standard error, a line a write. What the descriptor does not take is counted in ``lost``, never raised."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[str] = []
        self.lost = 0

    def write(self, text: str) -> int:
        self._pending.append(text)
        return len(text)

    def flush(self) -> None:
        rest = "".join(self._pending).encode("utf-8", "backslashreplace")
        self._pending.clear()
        try:
            while rest:
                rest = rest[os.write(FD, rest) :]
        except OSError:
            self.lost += 1

    def isatty(self) -> bool:
        return os.isatty(FD)


def fill_standard_descriptors() -> None:
    """Open /dev/null where 0, 1 or 2 is closed: the next file or socket would get that number, and the log with it."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= FD:
        os.set_inheritable(fd, True)
    os.close(fd)
