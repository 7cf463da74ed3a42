# SPDX-License-Identifier: Apache-2.0
"""The engine thread held between two steps, so that a region comes to rest and can be looked at."""

from __future__ import annotations

import threading

from typing import final

from dsv41_rehearse.engine import Engine


@final
class Gate:
    """A watcher. While it is shut, the engine launches no step; those in flight end."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._held = threading.Event()

    def __call__(self, engine: Engine) -> None:  # noqa: ARG002 a watcher
        """Wait where it is shut."""
        if not self._open.is_set():
            self._held.set()
            self._open.wait()

    def shut(self, timeout_s: float = 10.0) -> bool:
        """Hold the engine; wait until it is held. False: it did not get here in time."""
        self._held.clear()
        self._open.clear()
        return self._held.wait(timeout_s)

    def open(self) -> None:
        """Let it go on."""
        self._open.set()
