# SPDX-License-Identifier: Apache-2.0
"""What one thread does at a time, and no thread inside itself: closing."""

from __future__ import annotations

import threading

from collections.abc import Callable

from engine_shim.errors import StreamStuck


class Turn:
    """
    Never a wait without an end, never two bodies at once, whoever is interrupted where.

    Nothing for a forked child: who holds it may not exist there.
    """

    def __init__(self) -> None:
        # Reentrant: a signal's handler that comes to it in the thread that has it finds out below, and does not wait for itself.
        self._mine = threading.RLock()
        # Held for the body and by ``with`` alone, where no signal comes between the taking and the giving back.
        self._inside = threading.Lock()

    def take(self, body: Callable[[], None], timeout_s: float) -> None:
        """
        Run ``body`` once nobody else is at it. Raises StreamStuck where another thread is for all of ``timeout_s``; at once where this thread is.

        A signal that comes just before the giving back leaves the turn to this thread. That is the main thread then, which may
        take it again; and nobody closes later than it does, at the interpreter's end.
        """
        if not self._mine.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX)):
            raise StreamStuck(f"another thread is closing it, and was not done within {timeout_s:g} s: try again")
        try:
            if self._inside.locked():
                raise StreamStuck(
                    "this thread is closing it already: a signal's handler interrupted that. Let the handler return, or raise, and try again"
                )
            with self._inside:
                body()
        finally:
            self._mine.release()
