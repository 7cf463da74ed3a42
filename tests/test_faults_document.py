# SPDX-License-Identifier: Apache-2.0
"""docs/FAULTS.md says of every drill what it does, its bound, how that is met, and what its last run found."""

from __future__ import annotations

import json
import subprocess
import sys

from pathlib import Path
from typing import Final

import pytest

from dsv41_rehearse.drills import registry
from dsv41_rehearse.drills.met import MET


ROOT: Final = Path(__file__).resolve().parent.parent
TEXT: Final = (ROOT / "docs" / "FAULTS.md").read_text(encoding="utf-8")


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
