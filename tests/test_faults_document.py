# SPDX-License-Identifier: Apache-2.0
"""docs/FAULTS.md says of every drill what it does, its bound, how that is met, and what its last run found."""

from __future__ import annotations

import json
import subprocess
import sys

from pathlib import Path
from typing import Any, Final

import pytest

from dsv41_rehearse.drills import registry
from dsv41_rehearse.drills.met import MET
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.runner import Run, report


ROOT: Final = Path(__file__).resolve().parent.parent
TEXT: Final = (ROOT / "docs" / "FAULTS.md").read_text(encoding="utf-8")
sys.path.insert(0, str(ROOT / "scripts"))

import document_faults  # noqa: E402 - the path had to be set


def test_it_is_what_drills_and_figures_say() -> None:
    ended = subprocess.run(
        [sys.executable, "scripts/document_faults.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("name", registry.DRILLS)
def test_it_tells_of_the_drill(name: str) -> None:
    drill = registry.DRILLS[name]
    assert f"| `{name}` | {drill.fault} | {drill.bound} | {MET[name]} |" in TEXT


def test_nothing_is_told_of_drills_that_there_are_not() -> None:
    assert set(MET) == set(registry.DRILLS)


def test_every_drill_was_run_and_none_was_wrong() -> None:
    figures = json.loads((ROOT / "docs" / "faults.json").read_text(encoding="utf-8"))
    assert set(figures["quick"]) == set(registry.DRILLS)
    assert {name: row["verdict"] for name, row in figures["quick"].items() if row["verdict"] == "WRONG"} == {}


def taken(tmp_path: Path, *rows: Row) -> dict[str, Any]:
    """Return what the document keeps of a run with these rows of one drill."""
    path = tmp_path / "run.json"
    what = Run(drills=(), scale="quick", repeat=len(rows), seed=1, json=None, command="test")
    path.write_text(json.dumps(report(what, rows, 1.0)))
    figures: dict[str, Any] = {"quick": {}, "full": {}}
    document_faults.take(figures, path)
    found: dict[str, Any] = figures["quick"]["idle"]
    return found


def late(stall_ms: float) -> Row:
    row = Row("idle", "it came late")
    row.tardy("seen", "25.0 ms, bound 20 ms", 5.0, None)
    row.late[0].stood_ms = stall_ms
    return row


def test_of_a_drill_that_was_repeated_no_verdict_hides_another(tmp_path: Path) -> None:
    good, stalled, wrong = Row("idle", "fine"), late(9.0), late(1.0)
    for rows, verdict, said in (
        ([good], "GOOD", "GOOD"),
        ([good, good], "GOOD", "GOOD 2 of 2"),
        ([good, stalled, good], "STALLED", "STALLED 1 of 3, GOOD 2 of 3"),
        ([wrong, good, stalled], "WRONG", "WRONG 1 of 3, STALLED 1 of 3, GOOD 1 of 3"),
        ([Row("idle", "", skipped="no time"), good], "SKIPPED", "SKIPPED 1 of 2, GOOD 1 of 2"),
    ):
        row = taken(tmp_path, *rows)
        assert (row["verdict"], document_faults.verdict_of(row)) == (verdict, said)


def test_the_document_says_what_was_late(tmp_path: Path) -> None:
    figures = {"quick": {"idle": taken(tmp_path, late(9.0))}, "full": {}}
    assert (
        "it came late; seen: 25.0 ms, bound 20 ms (stood still somewhere in the drill for 9 ms)"
        in document_faults.document(figures)
    )
