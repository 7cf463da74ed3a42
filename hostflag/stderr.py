# SPDX-License-Identifier: Apache-2.0
"""The log's way out. A reader that went away or stands still, or a full disk, must not take daemon or worker with it."""

from __future__ import annotations

import errno
import io
import os
import re
import select
import socket
import stat
import sys
import time

from typing import Final


FD: Final = 2
TELL_AGAIN_S: Final = 1.0
NOBODY_READS: Final = "nobody reads the log"
# So much a terminal takes without waiting, once it takes anything: the least buffer of a pseudo-terminal, and no character of which
# it makes two beside others.
_TERMINAL_PIECE: Final = re.compile(rb"[^\t\n\r]{1,256}|[\t\n\r]")


class Stderr(io.TextIOBase):
    """
    Standard error, a line a write. What the descriptor does not take at once is counted in ``lost``, never raised or waited for.

    ``note``: how many lines it did not take, and why, in words; empty while it takes them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[str] = []
        self.lost = 0
        self._untold = 0
        self._telling = 0  # what the next line tells of
        self._tell_at = 0.0  # monotonic
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
                self._put(b"\n")
            self._put(rest)
        except OSError as fault:
            self.lost += 0 if self._telling else 1
            self._untold += self._telling or 1
            self._reason = fault.strerror or str(fault)
            self._takes = False
        else:
            self._takes = True
        self._telling = 0

    @property
    def note(self) -> str:
        """What to say of it elsewhere than in the log."""
        return f"{self._untold} lines of the log were lost: {self._reason}" if self._untold else ""

    def take_lost(self) -> tuple[int, str] | None:
        """
        Return how many lines were lost and why; the next line is to tell it. None: nothing to tell, or it was tried just now.

        Asked for as soon as lines are taken again, and every ``TELL_AGAIN_S`` before: a program with nothing else to say tells it
        too. A line that is lost itself is none: what it told of stays untold. Not from within a write: whoever logs holds its
        logger's lock there.
        """
        now = time.monotonic()
        if not self._untold or (not self._takes and now < self._tell_at):
            return None
        self._tell_at = now + TELL_AGAIN_S
        self._telling, self._untold = self._untold, 0
        return self._telling, self._reason

    def isatty(self) -> bool:
        return os.isatty(FD)

    def _put(self, rest: bytes) -> None:
        while rest:
            written = _write_some(rest)
            rest = rest[written:]
            self._cut = bool(rest)


def _write_some(data: bytes) -> int:
    """
    Write the beginning of ``data``, or all of it, and return how much. Never waits; raises OSError.

    Not by O_NONBLOCK, which whoever else has this file description (a shell, the program beside us) would have as well.
    """
    kind = os.fstat(FD).st_mode
    if stat.S_ISREG(kind):
        return os.write(FD, data)
    if stat.S_ISSOCK(kind):  # systemd's journal
        return _send_some(data)
    poller = select.poll()
    poller.register(FD, select.POLLOUT)
    if not poller.poll(0):
        raise BlockingIOError(errno.EAGAIN, NOBODY_READS)
    # A pipe that is writable has room for so much, where nobody else writes into it in this moment.
    piece = _TERMINAL_PIECE.match(data) if os.isatty(FD) else None
    return os.write(FD, piece.group() if piece else data[: select.PIPE_BUF])


def _send_some(data: bytes) -> int:
    log = socket.socket(fileno=FD)
    try:
        return log.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except BlockingIOError as full:
        raise BlockingIOError(errno.EAGAIN, NOBODY_READS) from full
    finally:
        log.detach()  # the descriptor stays


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
