# SPDX-License-Identifier: Apache-2.0
"""A rehearsal whose daemon, or worker, is killed and comes back: what it does, what it says, and what it would call wrong."""

from __future__ import annotations

import importlib.util

from pathlib import Path
from typing import Any

import pytest

from rehearse_support import QUICK, gone, run

from dsv41_rehearse.__main__ import main


SMALL = ("--requests", "3", "--length", "2500", "--arrival-steps", "20", "--rows-bytes", "192", "--gpu-ms", "1")


def lost(report: dict[str, Any]) -> dict[str, int]:
    return {reason: count for reason, count in report["losses"].items() if count}


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_the_daemon_is_killed_and_drafts_come_back(tmp_path: Path, mode: str) -> None:
    audit = tmp_path / "audit"
    report = run(tmp_path, "demo", *SMALL, "--mode", mode, "--drafter", "mock", "--audit", str(audit))
    assert report["mode"] == mode
    assert lost(report) == {"HANGUP": 1}
    assert report["lost"] is None, "there was a session in the end"
    assert len(report["daemon_pids"]) == 2
    assert gone(report["daemon_pids"])
    assert (report["registrations"], report["adoptions"]) == (1, 1)
    assert report["recovery_from"] == "ready"
    for name in ("recovery_ms", "recovery_from_kill_ms", "loss_seen_ms"):
        assert set(report[name]) == {"n", "min", "p50", "max"}
        assert report[name]["n"] == 1
    assert 0 <= report["recovery_ms"]["max"] <= 500
    assert report["recovery_ms"]["max"] <= report["recovery_from_kill_ms"]["max"]
    assert report["identical"]
    assert report["requests_completed"] == report["requests_submitted"] >= 3
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    assert report["rounds"]["OK"] > 50
    assert report["skipped"]["NO_SESSION"] > 20
    assert set(report["rounds"]) <= {"OK", "LOST", "DISCONNECTED"}
    assert report["left_over"] == []
    # One file a session; what a person can do too.
    assert len(list(audit.glob("engine-*.jsonl"))) == 2
    assert main(["compare", str(audit)]) == 0


def test_a_short_run_goes_on_until_it_drafts_again(tmp_path: Path) -> None:
    report = run(tmp_path, "demo", "--requests", "1", "--length", "100", *QUICK)
    assert lost(report) == {"HANGUP": 1}
    assert report["requests_completed"] == report["requests_submitted"] > 1
    assert report["recovery_ms"]["n"] == 1


def test_where_nobody_drafts(tmp_path: Path) -> None:
    report = run(tmp_path, "demo", "--mode", "none", *SMALL)
    assert report["identical"]
    assert report["daemon_pids"] == []
    assert report["rounds"] == {}
    assert report["target_only_steps"] == report["skipped"]["NO_SHIM"] > 100
    assert report["accepted_per_step"] == 0


def test_simulated_acceptance_is_said_and_ships_rows_of_all_counts(tmp_path: Path) -> None:
    report = run(tmp_path, "demo", *SMALL, "--no-kill", "--drafter", "mock", "--simulate-acceptance")
    assert report["acceptance_simulated"]
    assert report["accepted_per_step"] is None
    assert report["identical"]
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    requests_and_rounds = report["drafts_checked"] / 5
    assert 2.5 < report["rows_checked"] / requests_and_rounds < 5, "on average half of the drafts and one more"


def test_simulated_acceptance_is_not_for_real_drafts() -> None:
    assert main(["demo", "--simulate-acceptance"]) == 2


@pytest.mark.parametrize(
    ("arguments", "losses", "registered"),
    [
        ("--kills 3", {"HANGUP": 3}, 1),
        ("--kills 2 --signal stop", {"BEAT": 2}, 2),
        ("--kills 2 --what worker", {}, 1),
        ("--kills 3 --what switch", {}, 1),
    ],
    ids=["daemons killed", "daemons stopped", "workers killed", "workers switched"],
)
def test_again_and_again(tmp_path: Path, arguments: str, losses: dict[str, int], registered: int) -> None:
    report = run(tmp_path, "kills", *arguments.split())
    assert report["faults"] == []
    assert lost(report) == losses
    assert report["registrations"] == registered
    assert report["adoptions"] == sum(losses.values()) - registered + 1
    assert report["recovery_ms"]["n"] == report["kills"] == int(arguments.split()[1])
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    assert report["drafts_checked"] > 100
    if "HANGUP" in losses:
        assert report["loss_seen_ms"]["max"] < 150
        assert report["released_ms"]["max"] < 150, "not by the deadline, which is 200"
    assert report["identical"]
    assert {"commit", "machine", "command", "seed", "before", "after"} <= set(report)
    assert set(report["first"]) >= {"fds", "maps", "threads", "rss_mib"}


def test_overlap_compares_the_modes(tmp_path: Path) -> None:
    report = run(tmp_path, "bench", "overlap", "--blocks", "1", "--block-s", "0.5")
    assert {"commit", "machine", "command", "seed"} <= set(report)
    # What each mode cannot be faster than; how much faster async is than sync is for a quiet machine to show.
    for mode, least in (("none", 30), ("async", 36), ("sync", 40)):
        assert report["step_ms"][mode]["p50"] >= least
        assert report["step_ms"][mode]["n"] >= 10
    assert report["wrong_drafts"] == 0
    assert len(report["goals"]) == 1
    assert lost(report) == {}
    assert report["recovery_ms"]["n"] == 0


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="the extra plot is not installed")
def test_a_picture_of_the_run(tmp_path: Path) -> None:
    picture = tmp_path / "run.png"
    run(tmp_path, "demo", *SMALL, "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
