# SPDX-License-Identifier: Apache-2.0
"""A run into which no draft came is not good, though its output is the text: it says so, and what became of the rounds."""

from __future__ import annotations

import json

from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearse_support import QUICK, rehearsal

from dsv41_rehearse.options import parse, scenario
from dsv41_rehearse.scenario import ScenarioError
from dsv41_rehearse.stack import Stack


WORK = ("--requests", "2", "--length", "300", "--uniform", *QUICK)


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack() as made:
        yield made


def test_without_a_worker(tmp_path: Path, stack: Stack) -> None:
    stack.start_daemon(f"ipc://{stack.directory}/nobody")
    with rehearsal(tmp_path, "run", "--socket", str(stack.socket), *WORK) as run:
        assert run.end() == 1, run.said()
        said = run.said()
        report = json.loads(run.json.read_text())
    assert "GOOD" not in said
    assert "no draft came through, no round ended OK" in said
    assert f"{report['rounds']['DISCONNECTED']} DISCONNECTED" in said
    assert "see the daemon's log" in said
    assert report["identical"], "nothing else is wrong"
    assert len(report["faults"]) == 1


def test_mode_none_wants_no_drafts(tmp_path: Path, stack: Stack) -> None:
    with rehearsal(tmp_path, "run", "--socket", str(stack.socket), "--mode", "none", *WORK) as run:
        assert run.report()["faults"] == []


@pytest.mark.parametrize("command", ["demo", "run --socket nowhere"])
def test_rounds_that_mode_none_never_makes_are_not_waited_for(command: str) -> None:
    with pytest.raises(ScenarioError, match="--mode none makes none"):
        scenario(parse([*command.split(), "--mode", "none", "--rounds", "5"]))
    assert scenario(parse([*command.split(), "--mode", "sync", "--rounds", "5"])).rounds == 5
