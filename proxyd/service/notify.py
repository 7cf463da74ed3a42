# SPDX-License-Identifier: Apache-2.0
"""
What systemd is told (sd_notify): one datagram of KEY=VALUE lines to the socket that NOTIFY_SOCKET names.

Not by the sdnotify package: it blocks where the manager is stalled (after 11 messages), writes Latin-1, so that one letter in a
STATUS loses the whole message, and swallows every error by default, so that a wrong NOTIFY_SOCKET looks like a slow start.
"""

from __future__ import annotations

import collections
import os
import socket
import time

from collections.abc import MutableMapping
from typing import Any, Final

import structlog


MAX_WAITING: Final = 16  # messages that the manager did not take yet; STATUS lines count once
MAX_STATUS_LETTERS: Final = 200
MAX_PATH_BYTES: Final = 107
_STATUS: Final = "STATUS="


class Notifier:
    """
    ``address`` is what NOTIFY_SOCKET said, None where nobody is to be told: then all of this does nothing.

    ``watchdog_s``: how often at least the manager wants to be pinged, None where it does not. ``full``: how often its queue had no
    room. Nothing here ever waits. Messages that found no room are kept, in order, for ``flush``; pings are not.
    """

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s if address else None
        self.full = 0
        self.fault: str | None = None  # why it cannot tell anybody, where it should
        self._log: Any = structlog.get_logger()
        self._waiting: collections.deque[str] = collections.deque()
        self._socket: socket.socket | None = None
        self._address = b""
        if address is None:
            return
        self._address = os.fsencode(address)
        if self._address[:1] not in (b"/", b"@") or not 2 <= len(self._address) <= MAX_PATH_BYTES + 1:
            self.fault = f"NOTIFY_SOCKET={address!r} is no address that this daemon knows"
            self.watchdog_s = None
            return
        if self._address.startswith(b"@"):
            self._address = b"\0" + self._address[1:]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> Notifier:
        """Return what the environment asks for, and remove it from there: no child is to speak in our name."""
        address = environment.pop("NOTIFY_SOCKET", None)
        microseconds, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        for_us = pid in {"", str(os.getpid())} and microseconds.isascii() and microseconds.isdigit()
        return cls(address or None, int(microseconds) / 1e6 or None if for_us else None)

    @property
    def manager(self) -> bool:
        """Whether there is a service manager to be told."""
        return self._socket is not None

    @property
    def waiting(self) -> bool:
        """Whether something is to be tried again (``flush``)."""
        return bool(self._waiting)

    def ready(self, status: str) -> None:
        """The daemon serves: after its start, and after a reload, whatever came of that."""
        self._say("READY=1", _status(status))

    def status(self, status: str) -> None:
        if self._waiting and self._waiting[-1].startswith(_STATUS):
            self._waiting.pop()  # only the newest counts
        self._say(_status(status))

    def reloading(self) -> None:
        """A reload begins; ``ready`` has to follow."""
        # Without the time `systemctl reload` of a Type=notify-reload unit waits until its timeout.
        self._say("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        self._say("STOPPING=1", _status(status))

    def ping(self) -> None:
        """The daemon works: keep its watchdog from biting."""
        self.flush()
        if not self._waiting:
            self._send("WATCHDOG=1")

    def flush(self) -> None:
        """Try again what found no room."""
        while self._waiting and self._send(self._waiting[0]):
            self._waiting.popleft()

    def close(self) -> None:
        """Closing twice is harmless."""
        self._waiting.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _say(self, *lines: str) -> None:
        if self._socket is None:
            return
        if len(self._waiting) == MAX_WAITING:
            self._waiting.popleft()
        self._waiting.append("\n".join(lines))
        self.flush()

    def _send(self, message: str) -> bool:
        """Return False where there is no room for it now."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto(message.encode("ascii"), self._address)
        except BlockingIOError:
            self.full += 1
            return False
        except OSError as fault:
            self._log.warning("systemd was not told", reason=fault.strerror, rate_limited=True)
        return True


def _status(text: str) -> str:
    # systemd drops a message that is not UTF-8, or in which a line break makes a line without "=".
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:MAX_STATUS_LETTERS])
    return _STATUS + printable.encode("ascii", "backslashreplace").decode("ascii")
