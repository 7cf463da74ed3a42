# SPDX-License-Identifier: Apache-2.0
"""A service manager's end of sd_notify, for tests."""

from __future__ import annotations

import socket

import pytest

from proxyd_harness import PATIENCE_S


class Manager:
    """A service manager's socket. ``address`` is what NOTIFY_SOCKET says."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE_S)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def next(self) -> str:
        return self._socket.recv(4096).decode("ascii")

    def next_but_pings(self) -> str:
        while (message := self.next()) == "WATCHDOG=1":
            pass
        return message

    def until(self, message: str) -> None:
        """Read up to a message."""
        seen: list[str] = []
        while not seen or seen[-1] != message:
            try:
                seen.append(self.next())
            except TimeoutError:
                pytest.fail(f"no {message!r} in {seen}")

    def all_there(self) -> list[str]:
        """Return what has come and was not read."""
        self._socket.setblocking(False)
        messages = []
        try:
            while True:
                messages.append(self.next())
        except BlockingIOError:
            return messages
        finally:
            self._socket.settimeout(PATIENCE_S)
