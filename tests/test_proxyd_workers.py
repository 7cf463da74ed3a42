# SPDX-License-Identifier: Apache-2.0
"""When other endpoints are looked at: without sockets, and whatever the clock says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from proxyd.links import workers as module
from proxyd.links.workers import UP_S, Workers
from proxyd.service.events import Timer


class Clock:
    """Timers that the test looks at, and its own time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Timer]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        self.timers.append((self.now + seconds, timer))
        return timer

    def due(self) -> list[float]:
        """When timers that nobody cancelled are due."""
        return [at for at, timer in self.timers if timer.call is not None]


class Session:
    settled = False

    def move(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))  # and nobody else's
    return made


@pytest.fixture
def workers(clock: Clock) -> Workers:
    events: Any = clock
    links: Any = None
    return Workers(events, links, ["ipc:///a", "ipc:///b"])


def test_sessions_that_come_put_no_look_off(workers: Workers, clock: Clock) -> None:
    for number in range(20):
        clock.now = number * UP_S / 20
        workers.follow(Session())
        assert clock.due() == [UP_S]


def test_a_session_that_loses_its_worker_has_the_others_looked_at_at_once(workers: Workers, clock: Clock) -> None:
    workers.follow(Session())
    clock.now = UP_S / 2
    workers.trouble()
    assert clock.due() == [UP_S / 2]
    workers.follow(Session())
    assert clock.due() == [UP_S / 2]
