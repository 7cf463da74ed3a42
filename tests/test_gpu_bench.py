# SPDX-License-Identifier: Apache-2.0
"""The GPU bench where there is no GPU: its bare programs compile, its documents are what the measurements make them."""

from __future__ import annotations

import json
import subprocess
import sys

from pathlib import Path

import pytest

from bench.gpu.bare.build import HERE, BareError, build, toolkit
from bench.gpu.deadlocks import minimal
from bench.gpu.goals import goals
from bench.gpu.show import tables
from bench.gpu.step import Item


PROGRAMS = [HERE / "floor.c", HERE / "park.c", minimal.PROGRAM]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_bare_programs_compile(program: Path, tmp_path: Path) -> None:
    try:
        toolkit()
    except BareError as why:
        pytest.skip(str(why))
    assert build(program, tmp_path).exists()


def test_documents_are_what_the_measurements_make_them(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/document_gpu.py", "--check"], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_table_of_the_last_run_is_whole(root: Path) -> None:
    report = json.loads((root / "docs" / "measured" / "bench.json").read_text())
    found = list(tables(report))
    assert len(found) >= 8
    for table in found:
        assert {len(row) for row in table.rows} == {len(table.head)}, table.title


def test_a_part_that_was_not_run_is_no_goal_met() -> None:
    found = goals({})
    assert found
    assert not any(goal.met for goal in found)


def test_only_rows_that_matter_are_shipped() -> None:
    window = 128
    assert Item(0, 0, 6).shipped(window) == 6
    assert Item(0, 0, 256, prefill=True).shipped(window) == 128
    assert Item(0, 0, 256, prefill=True, to_come=100).shipped(window) == 28
    assert Item(0, 0, 256, prefill=True, to_come=256).shipped(window) == 0
