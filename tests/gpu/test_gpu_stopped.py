# SPDX-License-Identifier: Apache-2.0
"""SIGSTOP to the daemon at each named point of its loop, SIGCONT once the next session is at work: its late writes reach nobody."""

from __future__ import annotations

import contextlib
import signal
import time

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_hand import PATIENCE_S, until
from gpu_harness import GEOMETRY, Ask, Engine, daemon, engine, worker
from proxyd_harness import Daemon

from dsv41_rehearse.drills import regions
from dsv41_rehearse.drills.failpoints import FILE_VARIABLE, POINTS, Control, NoFailpointsError, build
from dsv41_rehearse.proc import state
from hostflag.verdicts import Verdict


DEADLINE_MS = 200.0
SLACK_S = 1.0
STEP = [Ask(0, 3, 2), Ask(1, 50, 3)]
GIVEN_UP = "the engine gave the session up"
DECIDED = {"decided", "released"}  # the verdict stands when the daemon stops there; the watchdog can but release


@pytest.fixture(scope="module")
def failing() -> str:
    """Give the daemon's build with failpoints, for its launcher. Nothing is skipped: where there is a GPU to test, this must be tested."""
    try:
        return build("proxyd._daemon")
    except NoFailpointsError as error:
        pytest.fail(f"the daemon cannot be stopped at its points: {error}", pytrace=False)


@pytest.fixture
def control(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Control]:
    with contextlib.closing(Control(short_dir / "failpoints")) as one:
        monkeypatch.setenv(FILE_VARIABLE, str(one.path))
        yield one


@pytest.mark.parametrize("point", POINTS)
def test_a_daemon_stopped_at_a_point_writes_nothing_into_a_later_session(
    short_dir: Path, failing: str, control: Control, point: str
) -> None:
    link, first, second = short_dir / "e.sock", short_dir / "1", short_dir / "2"
    first.mkdir()
    second.mkdir()
    link.symlink_to(first / "e.sock")
    program = ("dsv41_rehearse.drills.failing", failing, "proxyd")
    with (
        worker(delay_ms=15.0) as endpoint,
        daemon(first, endpoint, program=program) as old,
        # With a self-test in one of them: a stream is tried once.
        engine(link, deadline_ms=DEADLINE_MS, self_test=point == POINTS[0]) as one,
    ):
        one.ok(STEP)
        stop_at(point, one, old, control)
        until(lambda: given_up(one), "the stopped daemon is given up")
        link.unlink()
        link.symlink_to(second / "e.sock")
        with daemon(second, endpoint) as new:
            assert one.shim.wait_session(PATIENCE_S)
            one.ok(STEP)
            resume_beside(one, old, new)
            for index in range(20):
                assert one.step([Ask(0, index, 2), Ask(1, 50 + index, 3)]) is Verdict.OK
        assert one.wrong == 0
        old.process.terminate()
        assert old.join() == 0


def stop_at(point: str, one: Engine, old: Daemon, control: Control) -> None:
    """Have a round in flight, or just submitted, while the daemon stands still there; see it released and its drafts legal."""

    def stopped() -> bool:
        return control.stopped_ns != 0 and state(old.pid) == "T"

    assert one.drained()
    control.arm(point)
    if point == "rest":
        until(stopped, "the daemon rests between rounds")
    ticket, submitted = one.submit(STEP), time.monotonic()
    until(stopped, f"the daemon comes to {point}")
    assert one.drained()
    assert time.monotonic() - submitted < DEADLINE_MS / 1e3 + SLACK_S, "released at its deadline"
    verdict = one.book(ticket.ref, STEP, one.tensors.drafts[: len(STEP)].tolist())
    assert (verdict is Verdict.OK) == (point in DECIDED), verdict


def given_up(one: Engine) -> bool:
    """Do a step; whether the session is lost."""
    one.step(STEP)
    return one.shim.session is None


def resume_beside(one: Engine, old: Daemon, new: Daemon) -> None:
    """Let the stopped daemon go on while the new session rests: not a byte of its region changes, and the old session is ended."""
    assert one.drained()
    (inode,) = regions.mapped_by(new.pid)
    assert inode not in regions.mapped_by(old.pid) | regions.held_by(old.pid)
    was = regions.at_rest(inode, GEOMETRY)
    assert state(old.pid) == "T", "until now"
    old.process.send_signal(signal.SIGCONT)
    until(
        lambda: any(line.get("reason") == GIVEN_UP for line in old.said("session over")),
        "the old daemon ends its session",
    )
    assert regions.difference(was, regions.at_rest(inode, GEOMETRY)) is None
