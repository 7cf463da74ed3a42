# SPDX-License-Identifier: Apache-2.0
"""A run into which no draft came is not good, though its output is the text: it says so, and what became of the rounds."""

from __future__ import annotations

import json

from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearse_support import QUICK, rehearsal

import dsv41_rehearse.engine

from dsv41_rehearse.drive import Drive, drive
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.options import parse, scenario
from dsv41_rehearse.outcome import report as make_report
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


def test_rounds_that_come_no_more_are_given_up(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon dies after the first rounds and no session may follow: the run has an end, and says what is missing."""
    monkeypatch.setattr(dsv41_rehearse.engine, "ROUNDLESS_S", 1.0)
    daemon = stack.start_daemon(stack.start_worker("mock"))
    wanted = scenario(parse(["run", "--socket", str(stack.socket), "--rounds", "100000", *WORK]))

    def watch(engine: Engine) -> None:
        if engine.tally.rounds["OK"] >= 10 and daemon.process.poll() is None:
            daemon.process.kill()

    how = Drive(scenario=wanted, socket=stack.socket, respawns=0, check_mock=True)
    report = make_report(how, drive(how, watch), None, [], expect_ok=False)
    made = sum(report.rounds.values())
    assert made >= 10
    assert any(f"{made} of 100000 rounds, then none for" in fault for fault in report.faults), report.faults
    assert report.identical


@pytest.mark.parametrize("command", ["demo", "run --socket nowhere"])
def test_rounds_that_mode_none_never_makes_are_not_waited_for(command: str) -> None:
    with pytest.raises(ScenarioError, match="--mode none makes none"):
        scenario(parse([*command.split(), "--mode", "none", "--rounds", "5"]))
    assert scenario(parse([*command.split(), "--mode", "sync", "--rounds", "5"])).rounds == 5
