# SPDX-License-Identifier: Apache-2.0
"""Signals that end a rehearsal: raised where it can be interrupted, held back where something would be left half-done."""

from __future__ import annotations

import signal
import threading

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final


ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, Ctrl-C or a terminal that closes: what was started is cleaned up."""


class _Interrupts:
    """The process's: signals are its own, too. Changed by the main thread alone, which is who signals interrupt."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Nothing came, nothing is held. One that came just where it was held again, or no more, has left them as they were."""
        self.holders = 0
        self.pending = False
        self.came = False  # one did, and is enough

    def raise_pending(self) -> None:
        if self.pending and not self.holders:
            self.pending = False
            raise TerminatedError

    def come(self, _number: int, _frame: FrameType | None) -> None:
        # timeout(1) sends two, an impatient person more: another must not end the cleaning up half-way. It is not set to be ignored
        # here: where the next one is on its way just then, Python says so with a traceback.
        if self.came:
            return
        self.came = self.pending = True
        self.raise_pending()


_interrupts: Final = _Interrupts()


@contextmanager
def heeded() -> Iterator[None]:
    """
    Raise TerminatedError at the first of these signals, and ignore the others from then on: the process is about to end.

    Main thread. One that was ignored before stays so, as Ctrl-C is by what a shell runs in the background.
    """
    _interrupts.begin()
    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, _interrupts.come) for number in heard}
    try:
        yield
    finally:
        for number, handler in previous.items():
            # One that comes late must not end a process half-way through its exit.
            signal.signal(number, signal.SIG_IGN if _interrupts.came else handler)


@contextmanager
def held() -> Iterator[None]:
    """Hold them back: what came meanwhile is raised at the end. In another thread than the main one nothing is to be held."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _interrupts.holders += 1
    try:
        yield
    finally:
        _interrupts.holders -= 1
    _interrupts.raise_pending()


@contextmanager
def let_through() -> Iterator[None]:
    """Within ``held``: raise what came, and what comes meanwhile. Main thread."""
    holders, _interrupts.holders = _interrupts.holders, 0
    try:
        _interrupts.raise_pending()
        yield
    finally:
        _interrupts.holders = holders
