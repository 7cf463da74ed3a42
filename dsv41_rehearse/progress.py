# SPDX-License-Identifier: Apache-2.0
"""Progress: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import logging
import time

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Protocol, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import engine_shim

from dsv41_rehearse.engine import Engine


BAR_EVERY_S: Final = 0.2
LINE_EVERY_S: Final = 5.0


class Watcher(Protocol):
    """Called by the engine thread after each step: has to be cheap."""

    def __call__(self, engine: Engine) -> None: ...


@final
class Shown:
    """Shows how far a run is. Everything happens in the calling thread: no refresh thread takes the interpreter lock."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._every_ns = int((BAR_EVERY_S if console.is_terminal else LINE_EVERY_S) * 1e9)
        self._next_ns = time.monotonic_ns() + self._every_ns
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Shown:
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[said]}"), TimeElapsedColumn(), console=self._console, auto_refresh=False,
                transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task("replaying", total=1.0, said="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, engine: Engine) -> None:
        """Show, where it is time to."""
        now = time.monotonic_ns()
        if now < self._next_ns:
            return
        self._next_ns = now + self._every_ns
        share, said = engine.progress(), describe(engine)
        if self._bar is None:
            self._console.print(f"  {share:4.0%}  {said}", highlight=False, soft_wrap=True)
        else:
            self._bar.update(self._task, completed=share, said=said)
            self._bar.refresh()


@final
class Silent:
    """Shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def __call__(self, engine: Engine) -> None:
        """Nothing."""


def describe(engine: Engine) -> str:
    """Return in a line what the engine did so far."""
    counts, tally = engine.scheduler.counts, engine.tally
    rounds = sum(tally.rounds.values())
    lost = f", session lost ({engine.lost})" if engine.lost else ""
    return (
        f"{tally.steps} steps, {rounds} rounds ({tally.rounds['OK']} OK), {tally.tokens} tokens, "
        f"{engine.accepted_per_step():.2f} drafts accepted a step, "
        f"{counts.completed} of {counts.submitted} requests done{lost}"
    )


class _Said(logging.Handler):
    """Prints what the engine's side logs: in the way of no progress bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(f"  engine: {record.getMessage()}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def said(console: Console, level: int) -> Iterator[None]:
    """Show what engine_shim logs from this level on, and nothing else of it."""
    log = logging.getLogger(engine_shim.__name__)
    handler = _Said(console)
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before
