# SPDX-License-Identifier: Apache-2.0
"""
Check the protocol's models with spin: ``check_model.py [--long] [--jobs N] [--only WORD]``.

Every sound design is searched whole and has no error; every broken rule is found. Ends with one table; exit 1 where one is
not as expected. Without spin it says so and checks nothing, but fails where CI is set.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model_runs import LONG, QUICK, Run


MODELS: Final = Path(__file__).resolve().parent.parent / "model"
DEPTH: Final = 200_000  # steps; a search that would need more is no complete one, and fails
# A search that was cut short says one of these, whatever it found before.
CUT_SHORT: Final = ("Search not completed", "max search depth too small", "out of memory", "hash-table full")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run. ``states``: stored. ``violation``: what spin said, or None. ``fault``: why it shows nothing, or None."""

    run: Run
    states: int
    megabytes: int
    seconds: float
    violation: str | None
    fault: str | None

    @property
    def verdict(self) -> str:
        """Either "ok" or what is wrong."""
        if self.fault is not None:
            return self.fault
        if self.run.expected == "found":
            return "ok" if self.violation else "NOT FOUND: the model does not see that this rule is broken"
        return f"VIOLATION: {self.violation}" if self.violation else "ok"


def parse(run: Run, output: str, status: int, seconds: float) -> Outcome:
    """Read what a search printed. ``status``: its exit status; ``seconds``: how long it took."""
    states = re.search(r"^ *([\d.e+]+) states, stored", output, re.MULTILINE)
    memory = re.search(r"^ *([\d.]+)\s+total actual memory usage", output, re.MULTILINE)
    errors = re.search(r"errors: (\d+)", output)
    found = re.search(r"^pan:\d+: (.*)", output, re.MULTILINE)
    violation = found[1] if found else None
    fault = None
    if states is None or errors is None or memory is None or status != 0:
        fault = f"NO RESULT: exit {status}: {output.strip().splitlines()[-1:] or 'no output'}"
    elif violation is None and (int(errors[1]) or any(text in output for text in CUT_SHORT)):
        fault = "NOT COMPLETE: the search was cut short"
    return Outcome(
        run=run,
        states=int(float(states[1])) if states else 0,
        megabytes=int(float(memory[1])) if memory else 0,
        seconds=seconds,
        violation=violation,
        fault=fault,
    )


def check(run: Run, *, level: str, megabytes: int, timeout_s: float) -> Outcome:
    """Generate, compile and run one search, in a folder of its own, within its memory and time."""
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        start = time.monotonic()
        optimise = "-O0" if run.expected == "found" else level  # what is found is found sooner than it is optimised
        steps = (
            ["spin", *run.defines, "-a", str(MODELS / f"{run.model}.pml")],
            [
                "gcc",
                optimise,
                "-w",
                "-DSAFETY",
                "-DCOLLAPSE",
                "-DVECTORSZ=2048",
                f"-DMEMLIM={megabytes}",
                "-opan",
                "pan.c",
            ],
            ["./pan", f"-m{DEPTH}", "-w22"],
        )
        output, status = "", 0
        try:
            for step in steps:
                ended = subprocess.run(step, cwd=folder, capture_output=True, text=True, check=False, timeout=timeout_s)
                output, status = ended.stdout + ended.stderr, ended.returncode
                if status != 0:
                    break
        except subprocess.TimeoutExpired:
            output, status = f"not through within {timeout_s:g} s", 124
        return parse(run, output, status, time.monotonic() - start)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return all that was found, one line a run."""
    head = ("run", "expected", "states", "MB", "s", "verdict")
    rows = [
        (o.run.name, o.run.expected, f"{o.states:,}", str(o.megabytes), f"{o.seconds:.1f}", o.verdict) for o in outcomes
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    right = {2, 3, 4}

    def line(row: Sequence[str]) -> str:
        cells = (
            text.rjust(w) if i in right else text.ljust(w) for i, (text, w) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *map(line, rows)])


def run_all(runs: Sequence[Run], jobs: int, *, level: str, megabytes: int, timeout_s: float) -> list[Outcome]:
    """Check them, ``jobs`` at a time, saying each as it ends; return them in the order given."""
    outcomes: dict[Run, Outcome] = {}
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(check, run, level=level, megabytes=megabytes, timeout_s=timeout_s) for run in runs]
        for n, ended in enumerate(as_completed(waiting), 1):
            outcome = ended.result()
            outcomes[outcome.run] = outcome
            print(f"[{n}/{len(runs)}] {outcome.seconds:5.1f} s  {outcome.run.name}: {outcome.verdict}", flush=True)
    return [outcomes[run] for run in runs]


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check the protocol's models with spin.")
    parser.add_argument("--long", action="store_true", help="the large configurations: minutes, a few GB")
    parser.add_argument("--jobs", type=int, default=0, help="searches at a time (default: a core each; with --long 1)")
    parser.add_argument("--only", default="", help="runs with this word in their name")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    missing = [name for name in ("spin", "gcc") if shutil.which(name) is None]
    if missing:
        print(f"model: {' and '.join(missing)} not installed, not checked (apt-get install {' '.join(missing)})")
        return 1 if "CI" in os.environ else 0
    runs = [run for run in (LONG if options.long else QUICK) if options.only in run.name]
    if not runs:
        print(f"model: no run has {options.only!r} in its name", file=sys.stderr)
        return 2
    jobs = options.jobs or (1 if options.long else os.cpu_count() or 1)
    level, megabytes, timeout_s = ("-O2", 8000, 1800.0) if options.long else ("-O1", 2000, 600.0)
    start = time.monotonic()
    outcomes = run_all(runs, jobs, level=level, megabytes=megabytes, timeout_s=timeout_s)
    wrong = [outcome for outcome in outcomes if outcome.verdict != "ok"]
    print(f"\n{table(outcomes)}\n\n{len(runs)} runs, {len(wrong)} not as expected, {time.monotonic() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
