# SPDX-License-Identifier: Apache-2.0
"""The GPU bench where there is no GPU: its bare programs compile, its documents are what the measurements make them."""

from __future__ import annotations

import json
import subprocess
import sys

from pathlib import Path

import pytest

from bench.gpu.bare.build import HERE, BareError, build, toolkit
from bench.gpu.busy import IDLE, Busy
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


def test_a_busy_interpreter_is_shown_where_it_was_measured() -> None:
    """A thread proxy is shown beside, and is nobody's goal."""
    measured = {"none": 600.0, "sync": 800.0, "thread": 840.0, "ours": 720.0}
    first = {"worker_ms": 6.0, "chunks": 10, **{way: {"first_token_ms": {"p50": ms}} for way, ms in measured.items()}}
    step = {way: {"step_ms": {"p50": ms / 20}} for way, ms in measured.items()}
    busy = {"worker_ms": 6.0, "python_ms": 20.0, "switch_ms": 5.0, "step": step, "first_token": first}
    overlap = {"gpu_ms": 30.0, "cpu_ms": 4.0, "kernels": 300, "requests": 3, "step": []}
    without, there = ([*tables({"overlap": one})] for one in (overlap, overlap | {"busy": busy}))
    added = [table for table in there if table.title not in {table.title for table in without}]
    assert ["With a busy interpreter" in table.title for table in added] == [True, True]
    assert [table.rows[-1] for table in added] == [
        (f"{name}x synchronous", "0.7500", "1.0000", "1.0500", "0.9000") for name in ("step ", "")
    ]
    (goal,) = (goal for goal in goals({"overlap": {"busy": busy}}) if "busy" in goal.name)
    assert (goal.met, goal.measured) == (True, 0.9)


def test_busy_is_a_fixed_number_of_turns() -> None:
    work = Busy(0.5)
    turns = work.turns
    work()
    assert work.turns == turns > 0
    assert work.ms > 0
    assert (IDLE.turns, IDLE.ms) == (0, 0.0)


def test_every_small_number_of_connections_has_to_be_refused() -> None:
    asked: dict[str, dict[str, object]] = {
        "1": {"refusal": "too few", "self_test": None, "steps": {}},
        "2": {"refusal": None, "self_test": "4 of 8 stood still", "steps": {}},
        "3": {"refusal": "too few", "self_test": None, "steps": {"other streams": "8 went on"}},
        "4": {"error": "no GPU"},
    }
    (table,) = tables({"few_connections": asked})
    assert table.rows == [
        ("1", "refused", "passes: -"), ("2", "for the self-test", "4 of 8 stood still"),
        ("3", "refused", "passes: 8 went on"), ("4", "not run: no GPU", "-"),
    ]  # fmt: skip
    (goal,) = (goal for goal in goals({"few_connections": asked}) if "CONNECTIONS" in goal.name)
    assert (goal.met, goal.measured) == (False, 1.0)


def test_only_rows_that_matter_are_shipped() -> None:
    window = 128
    assert Item(0, 0, 6).shipped(window) == 6
    assert Item(0, 0, 256, prefill=True).shipped(window) == 128
    assert Item(0, 0, 256, prefill=True, to_come=100).shipped(window) == 28
    assert Item(0, 0, 256, prefill=True, to_come=256).shipped(window) == 0
