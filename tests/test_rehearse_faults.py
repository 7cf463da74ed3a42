# SPDX-License-Identifier: Apache-2.0
"""A daemon or a worker that dies or stops in the middle: the run goes on without drafts to its right end."""

from __future__ import annotations

import os
import signal

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearse_support import QUICK, Rehearsal, rehearsal, wait_until

from dsv41_rehearse import proc
from dsv41_rehearse.stack import Stack
from hostflag.audit import read


# A step waits for the worker most of its time: whenever something dies, a round is parked.
WORKER_MS = 15.0
WORK = ("--requests", "3", "--concurrency", "3", "--length", "600", "--uniform", "--arrival-steps", "0", *QUICK)
RELEASED_MS = 1_000.0  # five deadlines: a loaded machine is late, a stuck stream would be late by the minute


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack() as made:
        yield made


def start(stack: Stack) -> tuple[int, int, Path]:
    """Start worker and daemon; return (worker pid, daemon pid, audit directory)."""
    audit = stack.directory / "audit"
    endpoint = stack.start_worker("mock", delay_ms=WORKER_MS, audit=audit)
    daemon = stack.start_daemon(endpoint)
    return stack.children[0].pid, daemon.pid, audit


def in_full_swing(run: Rehearsal, audit: Path, engines: int = 1) -> None:
    """Wait until so many engines have written the first second of their rounds."""

    def written() -> bool:
        assert run.process.poll() is None, run.said()
        return sum(path.stat().st_size > 0 for path in audit.glob("engine-*.jsonl")) >= engines

    wait_until(written, why=run.said())


def interrupted(tmp_path: Path, stack: Stack, victim: str, number: signal.Signals) -> dict[str, Any]:
    """Run, do this to the daemon or the worker in the middle, return the report of the run's good end."""
    worker, daemon, audit = start(stack)
    arguments = ("--socket", str(stack.socket), "--expect-mock", *WORK)
    # A worker that is killed loses the end of its audit: then the mock's own check has to do.
    engine_audit = audit if victim == "daemon" else tmp_path / "audit"
    with rehearsal(tmp_path, "run", *arguments, "--audit", str(engine_audit)) as run:
        in_full_swing(run, engine_audit)
        os.kill({"daemon": daemon, "worker": worker}[victim], number)
        report = run.report()
    assert report["identical"]
    assert report["requests_completed"] == report["requests_submitted"] == 3
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    assert report["drafts_checked"] > 0
    assert report["rounds"]["OK"] > 20
    assert report["target_only_steps"] > 20
    assert report["step_ms"]["max"] < RELEASED_MS
    return report


def sum_of_rounds(report: dict[str, Any]) -> int:
    """Return how many rounds a run made."""
    return int(sum(report["rounds"].values())) + int(report["context_rounds"])


def test_daemon_killed_while_a_round_is_parked(tmp_path: Path, stack: Stack) -> None:
    report = interrupted(tmp_path, stack, "daemon", signal.SIGKILL)
    assert report["lost"] == "HANGUP"
    assert set(report["rounds"]) <= {"OK", "LOST", "DISCONNECTED"}, "DISCONNECTED: the worker has not opened it yet"
    assert report["rounds"].get("LOST", 0) <= 3, "only what was in flight"
    assert report["skipped"]["NO_SESSION"] > 20


def test_daemon_killed_and_started_again_by_somebody_else(tmp_path: Path, stack: Stack) -> None:
    _, daemon, audit = start(stack)
    # Without drafts steps are short: they have to last until the next daemon is there.
    arguments = ("--socket", str(stack.socket), "--audit", str(audit), "--expect-mock", *WORK, "--gpu-ms", "8")
    with rehearsal(tmp_path, "run", *arguments) as run:
        in_full_swing(run, audit)
        stack.named("daemon").kill()
        second = stack.start_daemon((stack.directory / "worker.endpoint").read_text().strip())
        report = run.report()
    assert report["lost"] is None
    assert report["losses"]["HANGUP"] == 1
    assert report["daemon_pids"] == [daemon, second.pid]
    assert report["recovery_from"] == "loss"
    assert report["recovery_ms"]["n"] == 1
    assert (report["registrations"], report["adoptions"]) == (1, 1)
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    assert report["identical"]


def test_a_budget_of_nothing(tmp_path: Path, stack: Stack) -> None:
    _, _, audit = start(stack)
    with rehearsal(
        tmp_path, "run", "--socket", str(stack.socket), "--audit", str(audit), "--respawns", "0", *WORK
    ) as run:
        in_full_swing(run, audit)
        stack.named("daemon").kill()
        stack.start_daemon((stack.directory / "worker.endpoint").read_text().strip())
        report = run.report()
    assert report["lost"] == "HANGUP"
    assert report["recovery_ms"]["n"] == 0
    assert run.said().count("0 sessions were lost unplanned") == 1, "said once"
    assert report["identical"]


def test_daemon_stopped_while_a_round_is_parked(tmp_path: Path, stack: Stack) -> None:
    report = interrupted(tmp_path, stack, "daemon", signal.SIGSTOP)
    assert report["lost"] in {"BEAT", "EXPIRIES"}
    assert 1 <= report["rounds"].get("EXPIRED", 0) + report["rounds"].get("LOST", 0) <= 5


def test_worker_killed(tmp_path: Path, stack: Stack) -> None:
    report = interrupted(tmp_path, stack, "worker", signal.SIGKILL)
    assert report["lost"] is None
    assert report["rounds"]["DISCONNECTED"] > 20


def test_worker_silent(tmp_path: Path, stack: Stack) -> None:
    report = interrupted(tmp_path, stack, "worker", signal.SIGSTOP)
    assert report["lost"] is None
    assert report["rounds"]["TIMEOUT"] >= 1
    assert report["rounds"]["DISCONNECTED"] > 20


def test_one_of_two_engines_killed(tmp_path: Path, stack: Stack) -> None:
    _, daemon, audit = start(stack)
    arguments = ("--socket", str(stack.socket), "--audit", str(audit), "--expect-mock")
    before = proc.footprint(daemon)
    with (
        rehearsal(tmp_path / "victim", "run", *arguments, "--requests", "1000", *QUICK) as victim,
        rehearsal(tmp_path / "other", "run", *arguments, *WORK) as other,
    ):
        in_full_swing(other, audit, engines=2)
        victim.kill()
        report = other.report()
    assert report["lost"] is None
    [others] = [path for path in audit.glob("engine-*.jsonl") if sum(1 for _ in read(path)) == sum_of_rounds(report)]
    verdicts = [line.verdict for line in read(others)]
    # Until the worker has opened the session rounds end at once; from then on the other sees nothing of all this.
    assert set(verdicts[verdicts.index("OK") :]) == {"OK"}
    assert verdicts.count("OK") > len(verdicts) / 2
    assert report["wrong_drafts"] == report["wrong_rows"] == 0
    assert report["identical"]
    wait_until(lambda: not proc.footprint(daemon).grown(before), why="the daemon keeps something of the dead session")


def test_no_gpu_library_in_the_running_daemon(tmp_path: Path, stack: Stack) -> None:
    worker, daemon, audit = start(stack)
    with rehearsal(tmp_path, "run", "--socket", str(stack.socket), "--audit", str(audit), *WORK) as run:
        in_full_swing(run, audit)
        maps = Path(f"/proc/{daemon}/maps").read_text()
        control = Path(f"/proc/{worker}/maps").read_text()
    assert "/memfd:" in maps, "not the maps of a daemon with a session"
    assert not [line for line in maps.splitlines() if any(name in line for name in ("libcuda", "torch", "numpy"))]
    assert "numpy" in control, "this test would not see numpy"


def test_drafts_that_are_not_the_mocks_are_noticed(tmp_path: Path, stack: Stack) -> None:
    stack.start_daemon(stack.start_worker("prompt-lookup"))
    arguments = ("--socket", str(stack.socket), "--expect-mock", "--requests", "1", "--length", "3000", *QUICK)
    with rehearsal(tmp_path, "run", *arguments) as run:
        assert run.end() == 1, "this engine would take any drafts for the mock's"
        assert "are not what the worker answered" in run.said()
