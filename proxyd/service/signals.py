# SPDX-License-Identifier: Apache-2.0
"""Signals as events of the loop: nothing runs in the middle of something else."""

from __future__ import annotations

import functools
import signal
import socket

from typing import TYPE_CHECKING, Final

from proxyd.service.events import READ


if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyd.service.events import Events


HEEDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Calls ``heed`` from the event loop for each signal of HEEDED, until closed. For the main thread."""

    def __init__(self, events: Events, heed: Callable[[signal.Signals], None]) -> None:
        self._events = events
        self._heed = heed
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        events.watch(self._read, READ, self._ready)  # first: it can fail, and nothing is changed then
        self._before_fd = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        # A Python handler has to be there for the wake-up byte to be written; it has nothing to do.
        self._before = {number: signal.signal(number, lambda _number, _frame: None) for number in HEEDED}
        # What came before there were handlers (proxyd.__main__ holds SIGHUP back) comes now.
        self._mask_before = signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)

    def close(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        self._events.forget(self._read)
        self._read.close()
        self._write.close()

    def _ready(self) -> None:
        numbers = list(self._read.recv(512))
        for at, number in enumerate(numbers):
            # Of many reloads only the last one counts: a storm of them must not keep everybody else waiting.
            if number in HEEDED and (number != signal.SIGHUP or number not in numbers[at + 1 :]):
                # A call of its own for each: a reload that fails must not take the end that was asked for with it.
                self._events.after(0.0, functools.partial(self._heed, signal.Signals(number)))
