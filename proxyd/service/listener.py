# SPDX-License-Identifier: Apache-2.0
"""A listening socket that hands over what it accepts."""

from __future__ import annotations

import errno
import socket

from collections.abc import Callable
from typing import Final

from proxyd.service.events import READ, Events


MAX_ACCEPTS: Final = 64  # a turn: a flood of connections must not keep the others waiting
PAUSE_S: Final = 0.5
_ONLY_THIS_ONE: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EPERM)


class Listener:
    """
    Owns a bound socket from here on.

    ``on_connection`` gets each connection, non-blocking and close-on-exec; where it raises, the connection is closed and
    ``on_fault`` hears of it. So it does where the process is out of descriptors or memory; then accepting pauses: a ready
    socket that cannot be accepted would otherwise spin.
    """

    def __init__(
        self,
        events: Events,
        listening: socket.socket,
        on_connection: Callable[[socket.socket], None],
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._events = events
        self._listening = listening
        self._on_connection = on_connection
        self._on_fault = on_fault
        listening.setblocking(False)
        listening.listen(128)
        events.watch(listening, READ, self._accept)

    def close(self) -> None:
        """Idempotent."""
        if self._listening.fileno() >= 0:
            self._events.forget(self._listening)
            self._listening.close()

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS):
            try:
                connection, _address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as fault:
                if fault.errno in _ONLY_THIS_ONE:
                    continue
                self._on_fault(fault)
                self._events.forget(self._listening)
                self._events.after(PAUSE_S, self._resume)
                return
            try:
                connection.setblocking(False)
                self._on_connection(connection)
            except Exception as fault:  # noqa: BLE001 - one connection's trouble must not become the others'
                connection.close()
                self._on_fault(fault)

    def _resume(self) -> None:
        if self._listening.fileno() < 0:
            return
        try:
            self._events.watch(self._listening, READ, self._accept)
        except OSError as fault:  # no watch is to be had either: later, not never
            self._on_fault(fault)
            self._events.after(PAUSE_S, self._resume)
