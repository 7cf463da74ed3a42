# SPDX-License-Identifier: Apache-2.0
"""The rows of drills for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.samples import short


_STYLES: Final = {"GOOD": "green", "WRONG": "bold red", "STALLED": "yellow", "SKIPPED": "dim"}
_COLUMNS: Final = ("detected", "released", "parked", "target-only", "back", "wrong", "leaks")
WIDTH: Final = 140


def line(console: Console, row: Row) -> None:
    """Print what came of one drill."""
    style = _STYLES[row.verdict]
    console.print(
        f"  [{style}]{row.verdict}[/{style}] {row.happened} ({row.seconds:g} s; stalls up to {row.stall_ms:g} ms)",
        highlight=False,
        soft_wrap=True,
    )
    _reasons(console, row)


def _reasons(console: Console, row: Row) -> None:
    for reason in [row.skipped] if row.skipped is not None else [*row.wrong, *row.spared]:
        console.print(f"    {reason}", highlight=False, markup=False, soft_wrap=True)
    if row.first is not None:
        console.print(f"    the second try; the first {row.first}", highlight=False, markup=False, soft_wrap=True)


def show(console: Console, rows: Sequence[Row]) -> None:
    """Print the table, and below it what is not as it should be. Times are ms."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("drill", no_wrap=True)
    for name in _COLUMNS:
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("verdict", no_wrap=True)
    made.add_column("what happened", overflow="fold")
    for row in rows:
        verdict = f"[{_STYLES[row.verdict]}]{row.verdict}[/]"
        made.add_row(row.drill, *cells(row), verdict, row.happened)
    # A file or a pipe counts as 80 columns: what does not fit is folded by whoever shows it, never cut.
    console.width = max(console.width, WIDTH)
    console.print(made)
    for row in rows:
        if row.verdict != "GOOD" or row.first is not None or row.left_out:
            console.print(f"{row.drill}: {row.verdict}", highlight=False, soft_wrap=True)
            _reasons(console, row)
    count = Counter(row.verdict for row in rows)
    said = ", ".join(f"{n} {verdict}" for verdict, n in count.items())
    console.print(f"{len(rows)} drills: {said}", highlight=False, soft_wrap=True)


def cells(row: Row) -> tuple[str, ...]:
    """Return the numbers of a row: detected, released, parked, target-only, back, wrong drafts, leaks."""
    if row.skipped is not None:
        return ("-",) * len(_COLUMNS)
    times = (_number(row.detected_ms), _number(row.released_ms))
    counts = (_count(row.parked), _count(row.target_only))
    return (*times, *counts, _number(row.recovered_ms), str(row.wrong_drafts), str(len(row.leaks)))


def _number(value: float | None) -> str:
    return "-" if value is None else short(value)


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)
