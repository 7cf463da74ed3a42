# SPDX-License-Identifier: Apache-2.0
"""A link that connects while the one before still serves: rounds do not wait for a connection to be made."""

from __future__ import annotations

import time

from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyd.links.link import Link
    from proxyd.service.events import Events, Timer


LIMIT_S: Final = 0.3  # then it is taken as it is: whoever was left is no better
TICK_S: Final = 0.002


class Warming:
    """Owns ``link`` until it is connected, or LIMIT_S is over; then ``on_ready`` gets it. Unless cancelled before."""

    def __init__(self, events: Events, link: Link, on_ready: Callable[[Link], None]) -> None:
        self._events = events
        self._link: Link | None = link
        self._on_ready = on_ready
        self._until = time.monotonic() + LIMIT_S
        self._timer: Timer = events.after(0.0, self._look)

    def cancel(self) -> None:
        """Close the link, where nobody else has it yet."""
        self._timer.cancel()
        if self._link is not None:
            self._link.close()
            self._link = None

    def _look(self) -> None:
        link = self._link
        if link is None:
            return
        if not link.connected and time.monotonic() < self._until:
            self._timer = self._events.after(TICK_S, self._look)
            return
        self._link = None
        self._on_ready(link)
