# SPDX-License-Identifier: Apache-2.0
"""The drills' own machinery: rows, runner, registry; and that a drill can fail."""

from __future__ import annotations

import io
import json
import os
import signal

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rich.console import Console
from stood import MS, Stood

from dsv41_rehearse.__main__ import main
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import Loss
from dsv41_rehearse.drills import registry, runner, table
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.losses import Killed, judge
from dsv41_rehearse.drills.regions import difference
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage, pause
from dsv41_rehearse.drills.stalls import Stalls
from dsv41_rehearse.drills.timed import Timed
from dsv41_rehearse.engine import Engine


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drill(run: Callable[[Plan], Row], name: str = "made-up") -> Drill:
    return Drill(name=name, fault="something", bound="nothing of it", run=run, quick_s=1, group="test")


def run(console: Console, *drills: Drill, repeat: int = 1, json_file: Path | None = None) -> list[Row]:
    what = runner.Run(drills=drills, scale="quick", repeat=repeat, seed=7, json=json_file, command="test")
    return runner.run(what, console)


def test_every_drill_of_the_contract_is_registered_once_and_in_its_order() -> None:
    assert registry.duplicates() == []
    assert registry.missing() == []
    assert [one.name for one in registry.chosen(["all"])] == list(registry.DRILLS)
    assert [one.name for one in registry.chosen(["soak", "idle"])] == ["idle", "soak"]


def test_a_drill_that_raises_is_wrong_and_those_after_it_run(console: Console) -> None:
    def raising(_plan: Plan) -> Row:
        raise RuntimeError("no such thing")

    rows = run(console, drill(raising, "first"), drill(lambda _: Row("second", "fine"), "second"))
    assert [row.verdict for row in rows] == ["WRONG", "GOOD"]
    assert "RuntimeError: no such thing" in said(console)


def test_a_drill_that_stalled_is_run_once_more_by_itself(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    lateness = iter([1.0, 0.0])

    def late_once(_plan: Plan) -> Row:
        row = Row("made-up", "fine")
        if next(lateness):
            row.bound("late", 25.0, 20.0)
        return row

    monkeypatch.setattr(Stalls, "longest_ms", lambda *_: 30.0)
    (row,) = run(console, drill(late_once))
    assert row.verdict == "GOOD"
    assert row.first is not None
    assert row.first.startswith("STALLED: late")
    assert "the second try" in said(console)


def test_each_repetition_has_a_seed_of_its_own_and_the_json_all_of_them(console: Console, tmp_path: Path) -> None:
    seeds: list[int] = []

    def noting(plan: Plan) -> Row:
        seeds.append(plan.seed)
        return Row("made-up", "fine")

    run(console, drill(noting), repeat=3, json_file=tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert seeds == [7, 8, 9] == [row["seed"] for row in found["rows"]]
    assert {row["verdict"] for row in found["rows"]} == {"GOOD"}
    assert found["commit"]
    assert found["machine"]


def test_the_table_has_the_words_of_a_row(console: Console) -> None:
    row = Row("daemon-kill", "killed", detected_ms=1.5, released_ms=4.25, parked=3, target_only=40, recovered_ms=200.0)
    table.show(console, [row, Row("idle", "not done", skipped="no time")])
    text = said(console)
    assert all(word in text for word in ("1.5", "4.25", "40", "200", "GOOD", "SKIPPED", "no time"))


def test_the_command_exits_with_1_where_a_drill_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for verdict, faults in ((0, []), (1, ["it was seen"])):
        made = drill(lambda _, found=faults: Row("made-up", "tried", faults=list(found)))  # type: ignore[misc]
        monkeypatch.setattr(registry, "DRILLS", {"made-up": made})
        assert main(["drill", "made-up"]) == verdict
    assert "it was seen" in capsys.readouterr().out


def test_a_drill_that_there_is_not_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["drill", "nothing"])
    assert left.value.code == 2
    assert "daemon-kill" in capsys.readouterr().err


def killed(**changes: Any) -> Killed:
    values: dict[str, Any] = {
        "hurt_ns": 0, "reason": "HANGUP", "lost_ns": 1 * MS, "ready_ns": 400 * MS, "back_ns": 700 * MS, "released_ns": [5 * MS],
        "pid_before": 1, "pid_after": 2,
    }  # fmt: skip
    loss = Loss(**{**values, **changes})
    parked = [Timed(ns / MS, loss.hurt_ns) for ns in loss.released_ns]
    return Killed(loss, parked, dying_ms=3.0, real_time=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"lost_ns": 21 * MS},
        {"lost_ns": None},
        {"released_ns": [199 * MS]},
        {"back_ns": 901 * MS},
        {"back_ns": None},
        {"reason": "BEAT"},
    ],
)
def test_each_bound_of_a_kill_can_be_missed(changes: dict[str, Any]) -> None:
    assert judge(Row("x", "y"), [killed(), killed()]).verdict == "GOOD"
    assert judge(Row("x", "y"), [killed(), killed(**changes)]).verdict == "WRONG"


def test_one_byte_of_a_region_that_changes_is_seen() -> None:
    was = os.urandom(1 << 20)
    now = bytearray(was)
    assert difference(was, bytes(now)) is None
    now[777_777] ^= 1
    assert difference(was, bytes(now)) == "from byte 777777 on"


def test_a_stage_finds_drafts_that_are_not_what_was_promised_and_what_is_left_open(console: Console) -> None:
    """The worker drafts otherwise than the stage believes, and the act forgets a descriptor."""
    forgotten: list[int] = []

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        forgotten.append(os.open(os.devnull, os.O_RDONLY))
        pause(drafting, 0.3)

    with Stage(plan=Plan("quick", 1, console), drafter="prompt-lookup") as stage:
        stage.drafter = "mock"
        row = stage.run(act).fill(Row("x", "y"))
    os.close(forgotten[0])
    assert row.wrong_drafts > 0
    assert any("fds" in leak for leak in row.leaks)
    assert row.verdict == "WRONG"


def test_a_stage_finds_a_loss_that_nobody_planned(console: Console) -> None:
    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        before = drafting.sessions.seen[-1]
        stage.newest_daemon.kill()
        stage.start_daemon()
        drafting.sessions.wait_other_than(before.id, 30.0)

    with Stage(plan=Plan("quick", 1, console)) as stage:
        row = stage.run(act).fill(Row("x", "y"))
    assert row.faults == ["sessions lost: 1 HANGUP; planned: 0"]


def test_a_loss_by_the_beat_is_the_machines_where_that_stood_still(console: Console) -> None:
    """The daemon is stopped for longer than a beat may be missed, behind the drill's back."""

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        before = drafting.sessions.seen[-1]
        stage.newest_daemon.process.send_signal(signal.SIGSTOP)
        pause(drafting, 1.0)
        stage.newest_daemon.process.send_signal(signal.SIGCONT)
        drafting.sessions.wait_other_than(before.id, 30.0)

    with Stage(plan=Plan("quick", 1, console)) as stage:
        row = stage.run(act).fill(Row("x", "y"))
    assert row.faults == []
    (late,) = row.late
    window = late.window
    assert window is not None
    for stall, verdict in ((100, "WRONG"), (400, "STALLED")):
        row.hold(Stood((window.until_ns / MS - stall, window.until_ns / MS)))
        assert row.verdict == verdict
