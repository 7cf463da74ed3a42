# SPDX-License-Identifier: Apache-2.0
"""The control plane's only waiting place: file descriptors and timers, one thread."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time

from collections.abc import Callable
from typing import Final, Protocol

import structlog


READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE
FAULT_PAUSE_S: Final = 0.01  # what is ready and fails would be ready again at once


class Source(Protocol):
    """Whatever has a file descriptor."""

    def fileno(self) -> int: ...


class Timer:
    """One call at one time, unless cancelled before."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


def _say(fault: Exception) -> None:
    structlog.get_logger().error("an event was not dealt with", reason=str(fault), exc_info=fault, rate_limited=True)


class Events:
    """
    Calls back when a descriptor is ready or a time has come.

    With no timer pending it sleeps without a timeout, so an idle daemon uses no CPU. What a call raises goes to
    ``on_fault``: one fault must not end what all the others have to do here.
    """

    def __init__(self, on_fault: Callable[[Exception], None] = _say) -> None:
        self._on_fault = on_fault
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def watch(self, source: Source | int, mask: int, call: Callable[[], None]) -> None:
        """Raises OSError, with nothing watched: a user's epoll watches have a limit, and take memory."""
        self._selector.register(source, mask, call)

    def change(self, source: Source | int, mask: int) -> None:
        """Waits for something else of a watched source; its call stays."""
        self._selector.modify(source, mask, self._selector.get_key(source).data)

    def forget(self, source: Source | int) -> None:
        """Stops watching; nothing happens where the source is not watched. Before the source is closed."""
        try:
            self._selector.unregister(source)
        except (KeyError, ValueError):
            return

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def turn(self) -> None:
        """Sleeps until something is due, then makes every call that is."""
        failed = 0
        for key, _mask in self._selector.select(self._timeout()):
            # An earlier call of this turn may have ended what this one was for.
            if self._selector.get_map().get(key.fd) is key:
                failed += not self._made(key.data)
        if failed:
            time.sleep(FAULT_PAUSE_S)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            call, timer.call = timer.call, None
            if call is not None:
                self._made(call)

    def close(self) -> None:
        self._selector.close()

    def _timeout(self) -> float | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _made(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception as fault:  # noqa: BLE001 - whatever it was, the others' calls are due as well
            self._on_fault(fault)
            return False
        return True
