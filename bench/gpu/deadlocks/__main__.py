# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.gpu.deadlocks [--json FILE]``: 0 where the product got through, whatever became of the helpers."""

from __future__ import annotations

import argparse
import sys
import tempfile

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.gpu.bare.build import BareError, build
from bench.gpu.deadlocks import minimal, through
from bench.gpu.machine import origin, write


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.deadlocks", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument(
        "--limit-s", type=float, default=2.0, help="what counts as hung (default 2 s; a helper needs 0.05)"
    )
    parser.add_argument("--only", choices=("minimal", "product"), help="one half of it")
    arguments = parser.parse_args(argv)
    console = Console(highlight=False, soft_wrap=True, width=180)
    report: dict[str, Any] = origin()
    console.print(f"deadlocks: {report['machine']}")
    if arguments.only != "product":
        report["minimal"] = _minimal(console, arguments.limit_s)
        write(arguments.json, report)
    if arguments.only == "minimal":
        return 0
    report["product"] = through.rounds()
    write(arguments.json, report)
    return _judge(console, report["product"])


def _minimal(console: Console, limit_s: float) -> list[dict[str, Any]]:
    found = []
    with tempfile.TemporaryDirectory(prefix="dsv41-deadlocks-") as scratch:
        try:
            program = build(minimal.PROGRAM, Path(scratch))
        except BareError as error:
            console.print(f"[red]the minimal program is not run[/red]: {error}")
            return [{"outcome": "not run", "reason": str(error)}]
        for case in minimal.cases():
            done = minimal.run(program, case, limit_s)
            found.append(done)
            console.print(_line(done))
    return found


def _line(done: dict[str, Any]) -> str:
    text = f"  {done['call']:<15} helper {done['helper']:<8} loading {done['module_loading']:<8} {done['outcome']}"
    if done["outcome"] == "hung":
        return f"{text}: the engine's thread was {done['engine']}, the helper {done['helper_was']}"
    if done["outcome"] == "passed":
        return f"{text}: released after {done['released_ms']:.1f} ms, the call took {done['call_ms']:.1f} ms"
    return f"{text}: {done['reason']}"


def _judge(console: Console, product: dict[str, Any]) -> int:
    good = not product["daemon_maps_libcuda"] and not product["losses"]
    for name in ("fresh_module", "first_torch_launch"):
        if name in product:
            one = product[name]
            good = good and one["ok"] == one["rounds"]
            console.print(
                f"  the product, {name.replace('_', ' ')}: {one['ok']} of {one['rounds']} rounds OK, {one['parked_at_call']} parked at the "
                f"call, which took up to {max(one['call_ms'], default=0):.1f} ms"
            )
    console.print(f"  {'GOOD' if good else 'WRONG'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
