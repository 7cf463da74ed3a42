# SPDX-License-Identifier: Apache-2.0
"""Whether a worker answers while no session asks one: then nobody else would know, and an engine is to find out before it comes."""

from __future__ import annotations

import time

from typing import TYPE_CHECKING, Any, Final

import structlog
import zmq


if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyd.links.probe import Probe
    from proxyd.links.workers import Workers
    from proxyd.service.events import Events, Timer


FIRST_S: Final = 0.05  # after the start: soon, but not before the daemon serves
AGAIN_S: Final = 2.0  # between two looks, where nobody answered
STILL_S: Final = 5.0  # the same, where somebody did
ANSWER_S: Final = 0.5
TICK_S: Final = 0.02


class Reach:
    """
    Looks now and then at all endpoints of ``workers`` while ``idle()``: one PING each. Until ``close``.

    ``answers``: whether one of them answered at the last look, None before the first one and after a switch to others. ``faults``: of
    those that could not be asked then, why. While there are sessions their links tell more, and nothing is looked at; what a session
    ``learned`` holds until the next look.
    """

    def __init__(self, events: Events, workers: Workers, idle: Callable[[], bool]) -> None:
        self.answers: bool | None = None
        self.faults: dict[str, str] = {}
        self._events = events
        self._workers = workers
        self._idle = idle
        self._log: Any = structlog.get_logger()
        self._probes: list[Probe] = []
        self._answer_by = 0.0
        self._unasked: dict[str, str] = {}  # in the look under way
        self._timer: Timer = events.after(FIRST_S, self._look)
        workers.on_switch = self._forget

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()
        self._end_look()

    def learned(self, answers: bool) -> None:
        """Take what a session knows of its worker."""
        self.answers = answers

    def _forget(self) -> None:
        self.answers, self.faults = None, {}
        self._timer.cancel()
        self._end_look()
        self._look()

    def _next(self, seconds: float, what: Callable[[], None]) -> None:
        self._timer.cancel()
        self._timer = self._events.after(seconds, what)

    def _look(self) -> None:
        # First: whatever goes wrong here, the looks go on.
        self._next(AGAIN_S, self._look)
        self._end_look()
        if not self._idle():
            return
        self._unasked = {}
        for endpoint in self._workers.endpoints:
            try:
                self._probes.append(self._workers.probe(endpoint))
            except zmq.ZMQError as fault:
                self._log.error("an endpoint cannot be probed", endpoint=endpoint, reason=str(fault), rate_limited=True)
                self._unasked[endpoint] = f"it cannot be asked: {fault}"
        self._answer_by = time.monotonic() + ANSWER_S
        self._tick()

    def _tick(self) -> None:
        self._next(AGAIN_S, self._look)
        answers = any(probe.answered() for probe in self._probes)
        if not answers and self._idle() and time.monotonic() < self._answer_by:
            self._next(TICK_S, self._tick)
            return
        faults = self._unasked | {probe.endpoint: probe.fault for probe in self._probes if probe.fault}
        self._end_look()
        if self._idle():
            self.faults = {} if answers else faults
            self._say(answers)
        self._next(STILL_S if self.answers else AGAIN_S, self._look)

    def _say(self, answers: bool) -> None:
        before, self.answers = self.answers, answers
        if answers and not before:
            self._log.info("a worker answers", endpoints=self._workers.endpoints)
        elif not answers and before is not False:
            why = {"faults": self.faults} if self.faults else {}
            self._log.warning("no worker answers, waiting for one", endpoints=self._workers.endpoints, **why)

    def _end_look(self) -> None:
        while self._probes:
            self._probes.pop().close()
