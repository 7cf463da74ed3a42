# SPDX-License-Identifier: Apache-2.0
"""structlog for every program here: a console on a terminal, JSON otherwise, one line for each change of state."""

from __future__ import annotations

import logging
import sys
import time

from collections.abc import MutableMapping
from typing import Any, Final

import structlog


LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("auto", "console", "json")
_NUMBERS: Final = {level: int(logging.getLevelName(level.upper())) for level in LEVELS}


class RateLimit:
    """
    A structlog processor: the same event from the same place at most ``rate_burst`` times (once) in ``interval_s`` seconds.

    Events ask for it with ``rate_limited=True``; ``rate_key`` tells sources apart. What was held back is counted in
    ``suppressed`` of the next line that passes.
    """

    def __init__(self, interval_s: float = 10.0, capacity: int = 1024) -> None:
        self._interval_s = interval_s
        self._capacity = capacity
        self._seen: dict[tuple[str, str], tuple[float, int, int]] = {}  # since when, how many passed, how many did not

    @property
    def tracked(self) -> int:
        """How many events are remembered."""
        return len(self._seen)

    def __call__(self, _logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Pass the event on, or drop it."""
        burst, source = int(event.pop("rate_burst", 1)), str(event.pop("rate_key", ""))
        if not event.pop("rate_limited", False):
            return event
        key = (str(event.get("event")), source)
        now = time.monotonic()
        since, passed, suppressed = self._seen.get(key, (float("-inf"), 0, 0))
        if now - since < self._interval_s:
            if passed < burst:
                self._seen[key] = (since, passed + 1, suppressed)
                return event
            self._seen[key] = (since, passed, suppressed + 1)
            raise structlog.DropEvent
        if len(self._seen) >= self._capacity:
            # Keys can come from peers: forget the oldest rather than grow.
            self._seen.pop(next(iter(self._seen)))
        self._seen.pop(key, None)
        self._seen[key] = (now, 1, 0)
        if suppressed:
            event["suppressed"] = suppressed
        return event


class LevelGate:
    """A structlog processor: drops what is less than ``level``, which may change while loggers are in use."""

    def __init__(self, level: str) -> None:
        self.level = level

    def __call__(self, _logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Pass the event on, or drop it."""
        if _NUMBERS.get(name, logging.ERROR) < _NUMBERS[self.level]:
            raise structlog.DropEvent
        return event


def set_level(level: str) -> None:
    """Write from now on what is at least ``level``, one of LEVELS, also by loggers that exist. After ``configure``."""
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, LevelGate):
            processor.level = level


def configure(level: str = "info", fmt: str = "auto") -> None:
    """
    Set structlog up for this process, once, writing to stderr.

    ``level`` is one of LEVELS, ``fmt`` one of FORMATS.
    """
    console = fmt == "console" or (fmt == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer()
    tail = [] if console else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[
            LevelGate(level),
            structlog.contextvars.merge_contextvars,
            RateLimit(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tail,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
