# SPDX-License-Identifier: Apache-2.0
"""What could not be taken down: kept until it can be, or until the process ends, since the device may still touch it."""

from __future__ import annotations

import logging
import threading

from collections.abc import Callable
from typing import Final

from engine_shim.errors import StreamStuck
from engine_shim.saying import say


_kept: Final[list[Callable[[], None]]] = []  # how to take it down, in order
_releasing: Final = threading.RLock()  # a signal's handler may come to it in the thread that has it


def keep(close: Callable[[], None]) -> None:
    """Keep what ``close`` takes down."""
    _kept.append(close)


def close_or_keep(close: Callable[[], None]) -> None:
    """Take down what did not come to be. Where that does not go it is no error: what was raised before that is to be told of."""
    try:
        close()
    except StreamStuck as stuck:
        keep(close)
        say(logging.ERROR, "what did not start cannot be taken down, and is kept until the process ends: %s", stuck)


def release_kept() -> bool:
    """
    Take down what had to be kept, where the device moves again. Whether nothing is left.

    For whoever knows that it moves, tests above all; nothing in this package calls it. It waits for each, and for another thread's call.
    """
    with _releasing:
        while _kept:
            close = _kept.pop(0)
            gone = False
            try:
                close()
                gone = True
            except StreamStuck:
                return False
            finally:
                if not gone:
                    _kept.insert(0, close)
    return True
