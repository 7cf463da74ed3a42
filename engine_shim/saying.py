# SPDX-License-Identifier: Apache-2.0
"""Log lines of threads that must go on, whatever logging does."""

from __future__ import annotations

import contextlib
import logging

from typing import Final


_log: Final = logging.getLogger("engine_shim")


def say(level: int, text: str, *arguments: object, fault: BaseException | None = None) -> None:
    """
    Log a line, with ``fault``'s traceback. Raises nothing: there is nowhere left to say what is lost here.

    Handlers are the program's; without any, logging's last resort raises where stderr is closed, as a daemon's is.
    """
    with contextlib.suppress(Exception):
        _log.log(level, text, *arguments, exc_info=fault, stacklevel=2)
