# SPDX-License-Identifier: Apache-2.0
"""Scheduling stalls, measured beside a drill: a machine that stood still is not a fault of the product."""

from __future__ import annotations

import threading
import time

from types import TracebackType
from typing import Final


NAP_S: Final = 0.002


class Stalls:
    """
    A context manager: a thread of this process that naps and notes by how much each nap was too long.

    ``longest_ms``: the longest since the beginning. It shares the interpreter lock with the drill: a stall that it sees may be the
    drill's own process's, not the whole machine's, and both make a time late that Python took.
    """

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rehearse-stalls", daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._leave.is_set():
            time.sleep(NAP_S)
            now = time.monotonic()
            self.longest_ms = max(self.longest_ms, (now - before - NAP_S) * 1e3)
            before = now
