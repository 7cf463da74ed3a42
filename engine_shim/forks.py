# SPDX-License-Identifier: Apache-2.0
"""
What a forked child must not keep of its parent's sessions, and what an interpreter that ends must not forget.

A child has neither the threads nor the maps. With the descriptors it would hold the session's socket open after its parent's
death, and the daemon would never see the engine gone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref

from typing import Final, Protocol

from engine_shim.errors import ShimError


EXIT_S: Final = 1.0


class Forked(Protocol):
    """Something that a fork must not copy."""

    def forked(self) -> None:
        """Drop, in the child, what the child has of it. Takes no lock: its holder may not exist there."""


class Closing(Forked, Protocol):
    """Something that is to be closed at the end."""

    def close(self, timeout_s: float) -> None:
        """Close it."""


_kept: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()
_closing: Final[weakref.WeakSet[Closing]] = weakref.WeakSet()


def forget_in_children(one: Forked) -> None:
    """Call its ``forked`` in every child that is forked while it lives."""
    _kept.add(one)


def close_at_exit(one: Closing) -> None:
    """Close it when the interpreter ends, unless it is gone by then."""
    _closing.add(one)


def _in_child() -> None:
    for one in list(_kept):
        one.forked()


def _at_exit() -> None:
    for one in list(_closing):
        # A stream that is stuck at the very end: the process takes what it has with it, and nothing is unmapped under it.
        with contextlib.suppress(ShimError):
            one.close(EXIT_S)


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
