# SPDX-License-Identifier: Apache-2.0
"""Time that passes when a test says so, and the timers that become due by it."""

from __future__ import annotations

from collections.abc import Callable

from proxyd.service.events import Timer


class Clock:
    """In the place of Events: timers that the test looks at, and its own time."""

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

    def pass_time(self, seconds: float) -> None:
        """Make every call that becomes due, in turn. What one raises is raised, with the time as it was then."""
        end = self.now + seconds
        while due := [each for each in self.timers if each[1].call is not None and each[0] <= end]:
            at, timer = min(due, key=lambda each: each[0])
            self.now = max(self.now, at)
            call, timer.call = timer.call, None
            if call is not None:
                call()
        self.now = end
