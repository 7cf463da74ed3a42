# SPDX-License-Identifier: Apache-2.0
"""The parts of a rehearsal that tell what happened over time: they must not call a bad run good."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import threading

from pathlib import Path
from typing import Any, cast

import pytest

from rich.console import Console

import engine_shim

from dsv41_rehearse import aftermath, picture
from dsv41_rehearse.drill import BOUND_MS, Drill, Loss
from dsv41_rehearse.drive import Driven
from dsv41_rehearse.gauge import Gauge, Level, grown
from dsv41_rehearse.progress import said
from dsv41_rehearse.report import ReportError, write
from dsv41_rehearse.samples import Few
from dsv41_rehearse.sessions import Release, Sessions
from dsv41_rehearse.timeline import Timeline


MS = 1_000_000


def test_few_samples() -> None:
    assert Few.of([]) == Few.of([None]) == Few(0, None, None, None)
    assert Few.of([3.0, None, 1.0, 2.0]) == Few(3, 1.0, 2.0, 3.0)
    assert str(Few.of([])) == "none"
    assert str(Few.of([5.0])) == "5"


def test_the_timeline_leaves_out_when_nobody_decoded() -> None:
    timeline = Timeline(1_000 * MS)
    timeline.add(1_001 * MS, 3, 2)
    timeline.add(1_002 * MS, 0, 2)
    timeline.add(1_500 * MS, 8, 4)
    timeline.add(1_900 * MS, 0, 0)
    series = timeline.series()
    assert [accepted for _, accepted in series] == [0.75, 2.0]
    assert series[0][0] < 0.05
    assert 0.49 < series[1][0] < 0.53
    assert len(Timeline(0).series()) == 0


def test_a_long_timeline_has_few_buckets_and_loses_nothing() -> None:
    timeline = Timeline(0)
    for step in range(10_000):
        timeline.add(step * 10 * MS, step % 3, 1)
    series = timeline.series(50)
    assert 40 <= len(series) <= 50
    assert sum(accepted for _, accepted in series) / len(series) == pytest.approx(1.0, rel=0.05)


def sessions_after_a_loss() -> Sessions:
    sessions = Sessions()
    sessions.meet(1, 10, None, 0, None)
    sessions.drafted(1, 5 * MS, 6 * MS)
    sessions.meet(2, 11, None, 100 * MS, "HANGUP")
    return sessions


def test_a_recovery_ends_with_the_first_drafted_round_of_the_next_session() -> None:
    sessions = sessions_after_a_loss()
    assert sessions.recoveries_ms() == []
    sessions.drafted(1, 90 * MS, 101 * MS)  # the old session's, booked late
    assert sessions.recoveries_ms() == []
    sessions.drafted(2, 140 * MS, 150 * MS)
    sessions.drafted(2, 150 * MS, 160 * MS)
    assert sessions.recoveries_ms() == [50.0]
    assert sessions.wait_other_than(1, 0.0) is sessions.newest
    assert sessions.wait_other_than(2, 0.0) is None


def test_waiting_ends_with_the_run() -> None:
    sessions = sessions_after_a_loss()
    sessions.over = True
    assert sessions.wait_drafted_after(1, 1e6) is None
    sessions.released(Release(1, "LOST", 5, 6))
    assert len(sessions.releases) == 1


def loss(ready_ms: float, back_ms: float | None) -> Loss:
    return Loss(
        hurt_ns=0, reason="HANGUP", lost_ns=4 * MS, ready_ns=int(ready_ms * MS),
        back_ns=None if back_ms is None else int(back_ms * MS), released_ns=[3 * MS, 2 * MS], pid_before=1, pid_after=2,
    )  # fmt: skip


def test_what_a_loss_took() -> None:
    one = loss(300, 350)
    assert (one.seen_ms, one.released_ms, one.recovery_ms, one.recovery_from_kill_ms) == (4, 3, 50, 350)


class _Driven:
    def __init__(self, **losses: int) -> None:
        self.status: dict[str, Any] = {"losses": losses}


@pytest.mark.parametrize(
    ("losses", "done", "says"),
    [
        ({"HANGUP": 1}, [loss(300, 300 + BOUND_MS)], None),
        ({"HANGUP": 1}, [loss(300, 301 + BOUND_MS)], "501 ms after the next daemon was ready"),
        ({"HANGUP": 1}, [loss(300, None)], "no draft after the next daemon"),
        ({"HANGUP": 1, "BEAT": 1}, [loss(300, 310)], "1 BEAT, 1 HANGUP; planned: 1"),
        ({}, [], "none; planned: 1"),
    ],
)
def test_what_is_wrong_with_a_loss(losses: dict[str, int], done: list[Loss], says: str | None) -> None:
    drill = Drill()
    drill.planned, drill.losses = 1, done
    found = aftermath.faults(cast("Driven", _Driven(**losses)), drill, expect_ok=True)
    assert len(found) == int(says is not None)
    assert says is None or says in found[0]


def test_a_loss_without_a_drill_is_wrong_where_none_was_expected() -> None:
    driven = cast("Driven", _Driven(BEAT=1))
    assert aftermath.faults(driven, None, expect_ok=True)
    assert not aftermath.faults(driven, None, expect_ok=False)


def level(**change: float) -> Level:
    values = dict.fromkeys(Level.__dataclass_fields__, 10.0) | change
    return Level(**values)


def test_what_grows_is_named() -> None:
    assert grown(level(), level()) == []
    assert grown(level(), level(maps=15.0, rss_mib=20.0)) == [], "these come and go"
    assert grown(level(), level(fds=11.0)) == ["fds grew from 10 to 11"]
    assert len(grown(level(), level(threads=11.0, shared_memory=14.0, daemon_rss_mib=40.0))) == 3


def test_the_gauge_leaves_out_a_daemon_that_is_gone() -> None:
    gauge = Gauge()
    gauge.look(2**22 + 1)  # beyond any pid
    assert gauge.ends() == (None, None)


def test_what_the_engine_logs_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger(engine_shim.__name__)
    before = list(log.handlers)
    with said(Console(), logging.WARNING):
        log.info("not this")
        log.warning("session lost [no markup]")
    assert log.handlers == before
    assert capsys.readouterr().out == "  engine: session lost [no markup]\n"


def test_a_picture_needs_a_place_and_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    picture.check(tmp_path / "run.png")
    for path in (tmp_path / "run.jpg", tmp_path / "missing" / "run.png"):
        with pytest.raises(ReportError, match=r"cannot write the picture|there is no directory"):
            picture.check(path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ReportError, match=r"pip install 'dsv41-proxyd\[plot\]'"):
        picture.check(tmp_path / "run.png")


def test_a_report_replaces_no_pipe_link_or_device(tmp_path: Path) -> None:
    pipe, full, link = tmp_path / "pipe", tmp_path / "full", tmp_path / "link"
    os.mkfifo(pipe)
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(pipe.read_text()), daemon=True)
    reader.start()
    write(pipe, {"a": 1})
    assert pipe.is_fifo()
    reader.join(20)
    assert json.loads(said[0]) == {"a": 1}
    link.symlink_to(tmp_path / "elsewhere")
    write(link, {"b": 2})
    assert link.is_symlink()
    assert json.loads((tmp_path / "elsewhere").read_text()) == {"b": 2}
    full.symlink_to("/dev/full")
    with pytest.raises(ReportError, match="No space left"):
        write(full, {})
    assert full.is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "full", "link", "pipe"]
