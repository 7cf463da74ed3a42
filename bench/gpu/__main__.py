# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.gpu``: one run, one table. A goal that is missed fails nothing; a part that breaks does, at the end."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table as Shown

from bench.gpu import goals, handoff, parked, picture, recovery, show
from bench.gpu.bare.build import HERE, Floor, build
from bench.gpu.cores import Cores
from bench.gpu.machine import origin, write
from dsv41_rehearse.bench_show import plain
from dsv41_rehearse.picture import check as check_picture
from dsv41_rehearse.report import ReportError
from engine_shim.cudadriver import CudaDriver


GPU_MS: Final = 30.0
CPU_MS: Final = 4.0


@dataclass(frozen=True)
class Effort:
    """How much of everything: blocks, rounds a block, steps a block, seconds at pace, kills."""

    blocks: int
    rounds: int
    steps: int
    pace_s: float
    kills: int


FULL: Final = Effort(blocks=4, rounds=1000, steps=40, pace_s=8.0, kills=10)
QUICK: Final = Effort(blocks=2, rounds=100, steps=8, pace_s=2.0, kills=2)


class Run:
    """Parts of the bench, each by itself: what one of them leaves is written before the next begins."""

    def __init__(self, arguments: argparse.Namespace, console: Console, scratch: Path) -> None:
        self.arguments = arguments
        self.console = console
        self.scratch = scratch
        effort = QUICK if arguments.quick else FULL
        self.effort = replace(effort, blocks=arguments.blocks or effort.blocks)
        self.report: dict[str, Any] = origin()
        self.broken: list[str] = []
        self._load: Any = None

    def part(self, name: str, do: Callable[[], Any]) -> None:
        """Do a part, unless only others are asked for."""
        if self.arguments.only and name not in self.arguments.only:
            return
        began = time.monotonic()
        self.say(name)
        try:
            self.report[name] = do()
        except Exception:  # noqa: BLE001 - the other parts of a rare run are worth having
            self.broken.append(name)
            self.report.setdefault("broken", {})[name] = traceback.format_exc()
            self.console.print(f"[red]{name} broke[/red]\n{traceback.format_exc()}")
        self.report.setdefault("seconds", {})[name] = round(time.monotonic() - began, 1)
        write(self.arguments.json, self.report)

    def say(self, text: str) -> None:
        """Say where the run is."""
        self.console.print(f"  {text} ...")

    def bare(self, name: str) -> Path:
        """Return a bare program, built."""
        return build(HERE / f"{name}.c", self.scratch)

    @property
    def load(self) -> Any:
        """GPU work as an engine has it, calibrated once."""
        if self._load is None:
            from bench.gpu.load import Load

            self._load = Load(GPU_MS, CPU_MS)
        return self._load


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    console = Console(highlight=False, soft_wrap=True, width=180)
    CudaDriver().use_primary(0)
    with ExitStack() as open_ones:
        run = Run(arguments, console, Path(open_ones.enter_context(tempfile.TemporaryDirectory(prefix="dsv41-bench-"))))
        console.print(f"bench.gpu: {run.report['machine']}, driver {run.report['driver']}, {run.report['date']}")
        _parts(run)
    run.report["goals"] = [plain(goal) for goal in goals.goals(run.report)]
    write(arguments.json, run.report)
    for table in show.tables(run.report):
        _print(console, table)
    if arguments.picture is not None:
        picture.draw(arguments.picture, run.report)
    if run.broken:
        console.print(f"broken: {', '.join(run.broken)}")
    return 1 if run.broken else 0


def _parts(run: Run) -> None:
    effort = run.effort

    def hand_off() -> dict[str, Any]:
        with ExitStack() as placed:
            cores = Cores.pick()
            if cores is not None:
                placed.enter_context(cores.for_the_rest())
            floor = placed.enter_context(Floor(run.bare("floor")))
            return handoff.measure(floor, cores, effort.blocks, effort.rounds, run.say)

    def overlapped() -> dict[str, Any]:
        from bench.gpu import overlap

        return overlap.measure(run.load, effort.blocks, effort.steps, run.say)

    def at_pace() -> dict[str, Any]:
        from bench.gpu import pace

        return pace.measure(run.load, effort.pace_s)

    run.part("handoff", hand_off)
    run.part("recovery", lambda: recovery.measure(effort.kills, run.say))
    run.part("parked", lambda: parked.bare(run.bare("park")))
    run.part("few_connections", parked.few_connections)
    run.part("overlap", overlapped)
    run.part("pace", at_pace)
    run.part("depth", parked.depth)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the report there, after each part")
    parser.add_argument("--picture", type=Path, help="write a picture (PNG) there")
    parser.add_argument("--quick", action="store_true", help="little of everything: does it run at all?")
    parser.add_argument(
        "--blocks", type=int, help=f"how often all that is compared takes turns (default: {FULL.blocks})"
    )
    parser.add_argument("--only", action="append", metavar="PART", help="this part; may be repeated")
    arguments = parser.parse_args(argv)
    if arguments.picture is not None:
        try:
            check_picture(arguments.picture)
        except ReportError as why:
            parser.error(str(why))
    return arguments


def _print(console: Console, table: show.Table) -> None:
    shown = Shown(*table.head, title=table.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    console.print()


if __name__ == "__main__":
    sys.exit(main())
