# SPDX-License-Identifier: Apache-2.0
"""What the engine's side says in its log, kept for a drill to look at."""

from __future__ import annotations

import logging

from types import TracebackType

import engine_shim


class Said(logging.Handler):
    """A context manager: meanwhile the lines of ``engine_shim`` are kept, and shown nowhere."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []
        self._log = logging.getLogger(engine_shim.__name__)
        self._before = self._log.level, self._log.propagate, self._log.handlers

    def __enter__(self) -> Said:
        self._log.handlers = [self]
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        level, self._log.propagate, self._log.handlers = self._before
        self._log.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.records.append(record)

    def lines(self, containing: str, level: int = logging.INFO) -> list[str]:
        """Return those of this level and above with these words in them."""
        return [one.getMessage() for one in self.records if one.levelno >= level and containing in one.getMessage()]
