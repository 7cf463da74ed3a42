# SPDX-License-Identifier: Apache-2.0
"""How our programs start: what they consist of is imported where Ctrl-C is no traceback. Imports next to nothing itself."""

from __future__ import annotations

import importlib
import os
import signal
import sys


TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all that is needed here
    from collections.abc import Callable, Sequence
    from types import FrameType

INTERRUPTED = 130
UNREAD = 141  # as a shell has it of who is ended by SIGPIPE


def run(modules: Sequence[str], argv: Sequence[str] | None) -> int:
    """
    Import these modules and run the last one's ``main``. Returns the exit status: its own; 130 for a Ctrl-C that it does not handle.

    A Ctrl-C while it is imported ends the process at once: nothing was begun that would have to be cleaned up.
    """
    main = _imported(modules)
    try:
        return main(argv)
    except KeyboardInterrupt:
        return INTERRUPTED


def unread() -> int:
    """Nobody reads our output any more: let what is still to be flushed go nowhere, return the exit status for it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return UNREAD


def _imported(modules: Sequence[str]) -> Callable[[Sequence[str] | None], int]:
    ours = (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )  # else it is ignored, or somebody's who imports us
    if ours:
        signal.signal(signal.SIGINT, _end)
    try:
        main: Callable[[Sequence[str] | None], int] = [importlib.import_module(name) for name in modules][-1].main
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    return main


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
