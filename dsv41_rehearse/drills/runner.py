# SPDX-License-Identifier: Apache-2.0
"""Run drills, one after the other, and hold each against its bound with the machine's own stalls beside it."""

from __future__ import annotations

import time

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dsv41_rehearse.drills import table
from dsv41_rehearse.drills.drill import Drill, Plan, Scale
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stalls import Stalls
from dsv41_rehearse.report import commit, machine, write


@dataclass(frozen=True, kw_only=True)
class Run:
    """``repeat``: each drill so often, the second time with ``seed`` + 1. ``json``: where everything that was found is written."""

    drills: Sequence[Drill]
    scale: Scale
    repeat: int
    seed: int
    json: Path | None
    command: str


def run(what: Run, console: Console) -> list[Row]:
    """Run them; print a line each, at the end the table. A drill that stalled is run once more, by itself."""
    began, rows = time.monotonic(), []
    for drill in what.drills:
        for number in range(what.repeat):
            console.print(f"[bold]{drill.name}[/bold]: {drill.fault}", highlight=False, soft_wrap=True)
            row = settled(drill, Plan(what.scale, what.seed + number, console))
            table.line(console, row)
            rows.append(row)
            if what.json is not None:
                # As it is now: a soak that is interrupted leaves what it found.
                write(what.json, report(what, rows, time.monotonic() - began))
    table.show(console, rows)
    return rows


def settled(drill: Drill, plan: Plan) -> Row:
    """Run a drill; again where a stalled machine kept it from saying anything."""
    row = once(drill, plan)
    if row.verdict != "STALLED":
        return row
    late = "; ".join(map(str, row.late))
    plan.say(f"stalled: {late}: once more")
    again = once(drill, plan)
    again.first = f"STALLED: {late}"
    return again


def once(drill: Drill, plan: Plan) -> Row:
    """Run a drill once. What it raises is a fault of the row: the drills after it are run all the same."""
    began = time.monotonic()
    with Stalls() as stalls:
        try:
            row = drill.run(plan)
        except Exception as error:  # noqa: BLE001 any error means that the bound was not shown to hold
            row = Row(drill.name, "the drill could not be done")
            row.faults.append(f"{type(error).__name__}: {error}")
        row.hold(stalls)
    row.seconds = round(time.monotonic() - began, 1)
    row.seed = plan.seed
    return row


def report(what: Run, rows: Sequence[Row], seconds: float) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "commit": commit(),
        "machine": machine(),
        "command": what.command,
        "seed": what.seed,
        "scale": what.scale,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "seconds": round(seconds, 1),
        "rows": [{**asdict(row), "verdict": row.verdict, "wrong": [*row.wrong, *row.spared]} for row in rows],
    }
