# SPDX-License-Identifier: Apache-2.0
"""A worker process that dies, hangs and comes back: rounds are decided meanwhile, drafts follow, the daemon is untouched."""

from __future__ import annotations

import contextlib
import signal
import time

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from proxyd_engine import Engine
from proxyd_harness import Daemon
from proxyd_worker import Rounds
from worker_peer import Worker, running_worker

from hostflag.verdicts import Verdict


BACK_S: Final = 1.0  # what is promised: drafts so soon after the worker is back
SLACK_S: Final = 2.0  # for a loaded machine
DECIDED_S: Final = 0.15  # the network timeout: no round waits longer for a worker


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir) as running:
        yield running


@pytest.fixture
def rounds(daemon: Daemon) -> Iterator[Rounds]:
    with Engine(daemon.path) as engine:
        yield Rounds(engine.ready())
        # Here, not where the daemon is ended: closing the engine ends the session, and that is logged.
        assert daemon.process.poll() is None
        assert not daemon.said("session over")


def worker(daemon: Daemon, directory: Path) -> contextlib.AbstractContextManager[Worker]:
    """Run a reference worker where the daemon looks for one; it is bound when the block begins."""
    directory.joinpath("endpoint").unlink(missing_ok=True)
    return running_worker(directory, endpoint=daemon.worker)


def back(rounds: Rounds) -> float:
    """Do rounds until one gets drafts; return how long that took, in seconds."""
    began = time.monotonic()
    rounds.until(Verdict.OK)
    took = time.monotonic() - began
    assert took < BACK_S + SLACK_S
    return took


def keep_on(rounds: Rounds, seconds: float) -> set[Verdict]:
    """Do rounds for so long; return their verdicts."""
    end = time.monotonic() + seconds
    verdicts = set()
    while time.monotonic() < end:
        began = time.monotonic()
        verdicts.add(rounds.next())
        assert time.monotonic() - began < DECIDED_S + SLACK_S
    return verdicts


def test_a_worker_that_is_killed_and_started_again(daemon: Daemon, rounds: Rounds, short_dir: Path) -> None:
    for _ in range(3):
        with worker(daemon, short_dir) as process:
            back(rounds)
            assert keep_on(rounds, 0.3) == {Verdict.OK}
            process.process.kill()
            process.process.wait()
            # The round that is on its way when the connection goes is decided by that.
            assert keep_on(rounds, 0.5) == {Verdict.DISCONNECTED}
    daemon.exactly("worker changed", 2)
    assert daemon.scrape()["dsv41_proxyd_worker_changes_total"] == 2
    daemon.exactly("session ready", 1)


@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_a_worker_that_hangs_and_goes_on(daemon: Daemon, rounds: Rounds, short_dir: Path, seconds: float) -> None:
    """Longer than OPEN may take, than a handshake may, than the breaker's first cool-down."""
    with worker(daemon, short_dir) as process:
        back(rounds)
        process.process.send_signal(signal.SIGSTOP)
        try:
            assert rounds.next() is Verdict.TIMEOUT
            assert Verdict.OK not in keep_on(rounds, seconds)
        finally:
            process.process.send_signal(signal.SIGCONT)
        back(rounds)
    assert not daemon.said("worker changed")


def test_a_hanging_worker_that_is_replaced(daemon: Daemon, rounds: Rounds, short_dir: Path) -> None:
    with worker(daemon, short_dir) as process:
        back(rounds)
        process.process.send_signal(signal.SIGSTOP)
        keep_on(rounds, 1.0)
        process.process.kill()
        process.process.wait()
    with worker(daemon, short_dir):
        back(rounds)
    daemon.exactly("worker changed", 1)


def test_restarts_leave_nothing_behind(daemon: Daemon, rounds: Rounds, short_dir: Path) -> None:
    with worker(daemon, short_dir):
        back(rounds)
        before = daemon.resources()
    for _ in range(5):
        with worker(daemon, short_dir):
            back(rounds)
    with worker(daemon, short_dir):
        back(rounds)
        daemon.back_to(before)
