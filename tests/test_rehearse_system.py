# SPDX-License-Identifier: Apache-2.0
"""The whole system on real text: demo and run as a person starts them, and what their reports have to say."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time

from collections import defaultdict
from pathlib import Path

import pytest

from rehearse_support import QUICK, children, gone, rehearsal, run, wait_until

from dsv41_rehearse.proc import alive
from dsv41_rehearse.text import BUNDLED
from hostflag.audit import read


KEYS = {
    "commit", "machine", "command", "seed", "daemon_pids", "requests_submitted", "requests_completed", "steps",
    "target_only_steps", "tokens", "accepted_per_step", "identical", "drafts_checked", "wrong_drafts", "rows_checked",
    "wrong_rows", "rounds", "skipped", "submit_us", "round_us", "step_ms", "daemon", "before", "after",
    "mode", "losses", "recovery_ms", "recovery_from_kill_ms", "loss_seen_ms", "released_ms", "registrations", "adoptions",
    "accepted_over_time", "acceptance_simulated",
}  # fmt: skip


def test_the_bundled_text_is_long_enough() -> None:
    assert len(BUNDLED.read_bytes()) >= 30 * 1024


def test_a_small_demo_and_its_report(tmp_path: Path) -> None:
    report = run(
        tmp_path, "demo", "--no-kill", "--requests", "4", "--length", "1500", "--arrival-steps", "20", "--preempt-every", "120",
        "--gpu-ms", "0.3",
    )  # fmt: skip
    assert set(report) >= KEYS
    assert report["identical"]
    assert report["requests_completed"] == report["requests_submitted"] == 4
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    assert report["drafts_checked"] > 1000
    assert report["rows_checked"] > 1000
    assert report["accepted_per_step"] > 0.5
    assert report["rounds"]["OK"] > 100
    for name in ("submit_us", "round_us", "step_ms"):
        assert report[name]["p50"] > 0
        assert set(report[name]) >= {"p50", "p99", "max", "batch"}
    assert set(report["daemon"]) == {"rss_private_mib", "region_mib", "idle_cpu_percent", "cpu_percent"}
    for side in ("before", "after"):
        assert set(report[side]["engine"]) == {"fds", "maps", "threads", "shared_memory"}
        assert set(report[side]["daemon"]) == {"fds", "maps", "threads", "shared_memory"}
    assert report["left_over"] == []
    assert report["events"]["preempted"] > 0
    assert not any(report["losses"].values())
    assert report["recovery_ms"] == {"n": 0, "min": None, "p50": None, "max": None}
    assert sum(accepted > 0 for _, accepted in report["accepted_over_time"]) > 10
    assert gone(report["daemon_pids"])


@pytest.mark.slow
def test_the_demo(tmp_path: Path) -> None:
    report = run(tmp_path, "demo")
    assert {reason: count for reason, count in report["losses"].items() if count} == {"HANGUP": 1}
    assert report["identical"]
    assert report["accepted_per_step"] > 1.0
    assert report["requests_completed"] == report["requests_submitted"] == 6
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    assert report["daemon"]["rss_private_mib"] <= 40
    events = report["events"]
    assert min(events["preempted"], events["cache_hits"], events["slot_reuses"]) > 0
    assert report["context_rounds"] > 0


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("concurrency", "rounds"), [(3, 10_000), (16, 1_500)])
def test_mock_drafts_and_rows_are_bit_exact(tmp_path: Path, concurrency: int, rounds: int) -> None:
    report = run(
        tmp_path, "demo", "--no-kill", "--drafter", "mock", "--rounds", str(rounds), "--concurrency", str(concurrency),
        "--gpu-ms", "0.1", "--simulate-acceptance", "--arrival-steps", "30",
    )  # fmt: skip
    assert report["scenario"]["row_bytes"] == 30_720
    assert report["rounds"]["OK"] >= rounds * 0.99
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    assert report["drafts_checked"] >= rounds * 0.9 * 5 * concurrency / 2
    assert report["rows_checked"] >= rounds * 0.9 * 2 * concurrency / 2, "1 to 6 rows a request, not always one"
    assert report["accepted_per_step"] is None
    assert report["identical"]


@pytest.mark.parametrize("requests", [5, 16])
def test_prefill_of_everybody_at_once_gets_over(tmp_path: Path, requests: int) -> None:
    audit = tmp_path / "audit"
    report = run(
        tmp_path, "demo", "--no-kill", "--drafter", "mock", "--requests", str(requests), "--concurrency", str(requests), "--uniform",
        "--prompt", "128", "--prefill-rows", "128", "--length", "640", "--arrival-steps", "0", "--preempt-every", "0",
        "--audit", str(audit),
    )  # fmt: skip
    assert report["requests_completed"] == requests
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    assert report["context_rounds"] >= 2, "more than the ring: several context-only rounds"
    prompt: dict[int, set[int]] = defaultdict(set)
    drafted: dict[int, int] = defaultdict(int)
    for path in audit.glob("worker-*.jsonl"):
        for line in read(path):
            for request in line.requests:
                if request.first >= 0:
                    prompt[request.slot] |= set(range(request.first, request.first + request.rows))
                drafted[request.slot] += request.drafts_crc is not None
    assert len(prompt) == requests
    for slot, positions in prompt.items():
        assert set(range(128)) <= positions, f"slot {slot}: its context is not whole"
        assert drafted[slot] >= 40, f"slot {slot}: as good as target-only for ever"


@pytest.mark.parametrize("steps_in_ring", [1, 2])
def test_a_ring_of_hardly_a_step_starves_nobody(tmp_path: Path, steps_in_ring: int) -> None:
    """16 prompts at once over a ring that holds one decode step of them, or two: the prompts get over, and then there are drafts."""
    report = run(
        tmp_path, "demo", "--no-kill", "--drafter", "mock", "--requests", "16", "--concurrency", "16", "--uniform",
        "--length", "400", "--arrival-steps", "0", "--ring-bytes", str(steps_in_ring * 46 * 65536),
    )  # fmt: skip
    assert report["rounds"]["OK"] >= 50, "of about 240: the worst ring tried, of four, had 93; before, 0"
    assert report["wrong_drafts"] == report["wrong_rows"] == 0


def test_the_counter_wraps(tmp_path: Path) -> None:
    report = run(
        tmp_path, "demo", "--no-kill", "--drafter", "mock", "--rounds", "5000", "--concurrency", "3", *QUICK, "--gpu-ms", "0",
        "--start-round", str(2**32 - 1000),
    )  # fmt: skip
    assert report["engine"]["current"]["submitted"] < 2**31, "it has passed 0"
    assert report["rounds"]["OK"] >= 4_950
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    assert report["identical"]


def test_keep_leaves_everything_for_inspection(tmp_path: Path) -> None:
    with rehearsal(tmp_path, "demo", "--no-kill", "--keep", "--requests", "1", "--length", "200", *QUICK) as kept:
        report = kept.report()
        [directory] = kept.left()
        assert {path.name for path in directory.iterdir()} >= {"daemon.log", "worker.log", "engine.sock", "audit"}
        pids = [int(word) for word in kept.said().partition("the processes ")[2].partition("\n")[0].split()]
        try:
            assert report["daemon_pids"][0] in pids
            assert all(alive(pid) for pid in pids)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
    wait_until(lambda: gone(pids))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("again_s", [0.0, 0.1], ids=["both at once", "once more while it cleans up"])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals, again_s: float) -> None:
    with rehearsal(tmp_path, "demo", "--requests", "1000", *QUICK) as started:
        wait_until(lambda: "daemon pid" in started.said(), why=started.said())
        pids = children(started.process.pid)
        assert len(pids) == 2
        wait_until(lambda: any((directory / "audit").exists() for directory in started.left()))
        started.signal(number)
        time.sleep(again_s)
        with contextlib.suppress(ProcessLookupError):
            started.signal(number)
        assert started.end() == 130, started.said()
        assert gone(pids)
        assert started.left() == []
        assert "Traceback" not in started.said()


def test_children_end_with_a_killed_parent(tmp_path: Path) -> None:
    with rehearsal(tmp_path, "demo", "--requests", "1000", *QUICK) as started:
        wait_until(lambda: "daemon pid" in started.said(), why=started.said())
        pids = children(started.process.pid)
        assert len(pids) == 2
        started.kill()
        wait_until(lambda: gone(pids), why="daemon and worker outlive the rehearsal")


def test_times_are_spent(tmp_path: Path) -> None:
    report = run(
        tmp_path, "demo", "--no-kill", "--requests", "1", "--length", "200", "--rows-bytes", "192", "--gpu-ms", "1", "--cpu-ms", "1",
        "--cpu-load", "sleep", "--worker-ms", "4",
    )  # fmt: skip
    # Every step waits for the worker and then does its GPU work; the CPU's share overlaps with both.
    assert report["step_ms"]["p50"] >= 5.0
    assert report["round_us"]["p50"] >= 4000.0


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    said = b""
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "dsv41_rehearse", "demo", "--requests", "2", "--length", "2000", *QUICK],
            stdin=subprocess.DEVNULL, stdout=follower, stderr=follower,
            env={**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "120"},
        )  # fmt: skip
        os.close(follower)
        # The end of a pseudoterminal whose other side is closed is an error on Linux.
        with contextlib.suppress(OSError):
            while chunk := os.read(leader, 65536):
                said += chunk
        assert process.wait(60) == 0
    finally:
        os.close(leader)
    assert b"replaying" in said
    assert b"GOOD" in said
    assert list(tmp_path.iterdir()) == []


def test_requests_that_come_after_a_pause(tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("ab" * 32)
    report = run(tmp_path, "demo", "--no-kill", "--text", str(text), "--requests", "20", "--arrival-steps", "38")
    assert report["requests_completed"] == 20
    assert report["wrong_rows"] == report["wrong_drafts"] == 0
    assert report["accepted_per_step"] > 3
