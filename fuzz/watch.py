# SPDX-License-Identifier: Apache-2.0
"""structlog while fuzzing: nothing is written, but what the product logs as an error of its own is a finding."""

from __future__ import annotations

import sys

from collections.abc import MutableMapping
from typing import Any

import structlog


class Finding(Exception):
    """What must hold does not hold for this input; the text says what."""


class _Watch:
    def __init__(self) -> None:
        self.faults: list[BaseException] = []

    def __call__(self, _logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if name == "exception" or event.get("exc_info") is True:
            self.faults.append(sys.exc_info()[1] or Finding(str(event.get("event"))))
        raise structlog.DropEvent


_watch = _Watch()


def begin() -> None:
    """Before an input: log nothing, and forget what was found before."""
    if structlog.get_config()["processors"] != [_watch]:
        structlog.configure(processors=[_watch], cache_logger_on_first_use=False)
    _watch.faults.clear()


def end() -> None:
    """After it: raise Finding where a handler of last resort caught something."""
    if _watch.faults:
        raise Finding(f"the product caught an error of its own: {_watch.faults[0]!r}") from _watch.faults[0]


def must(holds: bool, what: str) -> None:
    """Raise Finding with ``what`` does not hold. No assertion: those can be switched off."""
    if not holds:
        raise Finding(what)
