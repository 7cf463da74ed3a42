# SPDX-License-Identifier: Apache-2.0
"""
Write docs/FAULTS.md: the contract fault by fault, with the figures of the last runs.

``document_faults.py RUN.json ...`` takes what ``dsv41-rehearse drill --json`` wrote into docs/faults.json, drill by drill, then
writes the document. Without arguments it writes the document anew, ``--check`` only says (status 1) whether that is due.
"""

from __future__ import annotations

import json
import sys

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final


ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dsv41_rehearse.drills import registry  # noqa: E402 - the path had to be set
from dsv41_rehearse.drills.met import MET  # noqa: E402
from dsv41_rehearse.drills.row import Row  # noqa: E402
from dsv41_rehearse.drills.table import cells  # noqa: E402


DOCUMENT: Final = ROOT / "docs" / "FAULTS.md"
FIGURES: Final = ROOT / "docs" / "faults.json"
SCALES: Final = ("quick", "full")
WORST_FIRST: Final = ("WRONG", "STALLED", "SKIPPED", "GOOD")
SHOWN: Final = tuple(name for name in Row.__dataclass_fields__ if name not in {"details", "late", "left_out"})
KEPT: Final = (*SHOWN, "verdict", "wrong")
HEAD: Final = """\
# What happens when something dies

Written by scripts/document_faults.py from the drills and their last runs. Each drill starts the real daemon, a real worker and
the engine stand-in, does what its fault says, and is held against its bound:

    make drills                          # every drill with small counts, in less than 10 minutes; ends with a table
    make soak                            # the contract's counts, about 80 minutes
    dsv41-rehearse drill NAME [NAME ...] # some of them; --repeat N, --seed N, --full, --json FILE

Deadline 200 ms, network timeout 150 ms unless a fault says otherwise. Times are milliseconds; a death is counted from the end of
the process's last thread, seen by a process of real-time priority that waits for nothing else, so a loss can be seen before it:
the kernel closes the sockets of the dying first.

A machine that stands still is not a fault of the product: beside each drill a small process on each processor naps and notes when
its naps were too long. Only where every time that is out of its bound is late by less than such a stall has of that very time, and
nothing else is wrong, a drill says STALLED: it shows nothing, and is run once more by itself. Where that is so of one in twenty such
times at most, these are left out, which the row says, and the others are judged. SKIPPED says what the machine lacks.
"""
COLUMNS: Final = (
    "drill",
    "verdict",
    "detected",
    "released",
    "parked",
    "target-only",
    "back",
    "wrong drafts",
    "leaks",
    "stalls",
    "what happened",
)


def load() -> dict[str, Any]:
    """Return the figures: scale -> drill -> its row and where it was run."""
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    return {scale: found.get(scale, {}) for scale in SCALES}


def take(figures: dict[str, Any], path: Path) -> None:
    """Take a run's rows. Of a drill that was repeated: how often each verdict, and the last row with the worst of them."""
    run = json.loads(path.read_text(encoding="utf-8"))
    where = {name: run[name] for name in ("commit", "machine", "date", "seed")}
    fresh: dict[str, list[dict[str, Any]]] = {}
    for row in run["rows"]:
        kept = {name: row[name] for name in KEPT if name in row} | {"run": where}
        fresh.setdefault(row["drill"], []).append(kept)
    for name, rows in fresh.items():
        count = Counter(row["verdict"] for row in rows)
        worst = next(verdict for verdict in WORST_FIRST if count[verdict])
        shown = [row for row in rows if row["verdict"] == worst][-1]
        shown["verdicts"] = {verdict: count[verdict] for verdict in WORST_FIRST if count[verdict]}
        figures[run["scale"]][name] = shown


def verdict_of(row: dict[str, Any]) -> str:
    """Return the verdict; of a drill that was repeated, each with how often it came: none hides another."""
    verdicts: dict[str, int] = row.get("verdicts", {})
    times = sum(verdicts.values())
    if times <= 1:
        return str(row["verdict"])
    return ", ".join(f"{verdict} {count} of {times}" for verdict, count in verdicts.items())


def lines(figures: dict[str, Any]) -> Iterator[str]:
    """Yield the document."""
    yield HEAD
    yield "## The contract\n"
    yield "| drill | fault | bound | how it is met |\n|---|---|---|---|"
    for name, drill in registry.DRILLS.items():
        yield _row(f"`{name}`", drill.fault, drill.bound, MET.get(name, "?"))
    for scale, title in zip(SCALES, ("small counts", "the contract's counts"), strict=True):
        rows = [(name, figures[scale][name]) for name in registry.DRILLS if name in figures[scale]]
        yield f"\n## The last run of each, {title}\n"
        if not rows:
            yield "None yet."
            continue
        yield from _origins(rows)
        yield f"{_row(*COLUMNS)}\n{'|---' * len(COLUMNS)}|"
        for name, row in rows:
            values = Row(**{key: value for key, value in row.items() if key in SHOWN})
            yield _row(f"`{name}`", verdict_of(row), *cells(values), f"{row['stall_ms']:g}", _happened(row))
        lacking = [name for name in registry.DRILLS if name not in figures[scale]]
        if lacking:
            yield f"\nNot run with these counts yet: {', '.join(f'`{name}`' for name in lacking)}."


def _happened(row: dict[str, Any]) -> str:
    if row["skipped"]:
        return str(row["skipped"])
    first = f" (second try; the first: {row['first']})" if row.get("first") else ""
    return "; ".join([row["happened"] + first, *row.get("wrong", [])])


def _origins(rows: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    """Yield a line for each run that rows are from."""
    runs: dict[str, list[str]] = {}
    for name, row in rows:
        run = row["run"]
        runs.setdefault(
            f"{run['date']}, commit `{_short(run['commit'])}`, seed {run['seed']}, {run['machine']}", []
        ).append(name)
    for where, names in runs.items():
        of = f" ({', '.join(names)})" if len(runs) > 1 else ""
        yield f"- {where}{of}"
    yield ""


def _short(commit: str) -> str:
    return commit[:12] + ("+" if commit.endswith("+") else "")


def _row(*cells_: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells_)} |"


def document(figures: dict[str, Any]) -> str:
    """Return the document."""
    return "\n".join(lines(figures)) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Return 0, or 1 where ``--check`` finds the document out of date."""
    figures = load()
    if "--check" in arguments:
        current = DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == document(figures)
        sys.stdout.write(
            "" if current else f"{DOCUMENT.relative_to(ROOT)} is out of date: run scripts/document_faults.py\n"
        )
        return 0 if current else 1
    for path in arguments:
        take(figures, Path(path))
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    DOCUMENT.write_text(document(figures), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
