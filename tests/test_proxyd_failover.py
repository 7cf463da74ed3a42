# SPDX-License-Identifier: Apache-2.0
"""Several worker endpoints in order of preference: fallen back on, and gone back to."""

from __future__ import annotations

import signal
import time

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxyd_engine import Engine
from proxyd_harness import Daemon, until
from proxyd_worker import Rounds, Worker
from test_proxyd_operator import named
from worker_peer import running_worker

from hostflag.verdicts import Verdict
from proxyd.links.preference import HOLD_S


@pytest.fixture
def spare(short_dir: Path) -> str:
    return f"ipc://{short_dir}/spare"


@pytest.fixture
def daemon(short_dir: Path, spare: str) -> Iterator[Daemon]:
    with Daemon(short_dir, f"--worker={spare}") as running:
        yield running


@pytest.fixture
def rounds(daemon: Daemon) -> Iterator[Rounds]:
    with Engine(daemon.path) as engine:
        yield Rounds(engine.ready())


def moves(daemon: Daemon, count: int) -> list[str]:
    """Return where it has moved to, once it has so often; more is a fault."""
    lines = daemon.exactly("worker endpoint changed", count) if count else daemon.said("worker endpoint changed")
    return [line["endpoint"] for line in lines]


def test_a_worker_that_never_came_is_replaced(daemon: Daemon, rounds: Rounds, spare: str) -> None:
    with Worker(spare):
        rounds.until(Verdict.OK)
    assert moves(daemon, 1) == [spare]


def test_the_first_is_used_where_both_are_there(daemon: Daemon, spare: str) -> None:
    with Worker(daemon.worker) as first, Worker(spare) as second, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        time.sleep(1)  # several looks, if there were any
        assert first.opens
        assert not second.opens
        assert moves(daemon, 0) == []


def test_a_worker_that_goes_is_replaced_and_gone_back_to(daemon: Daemon, rounds: Rounds, spare: str) -> None:
    with Worker(spare, named("spare")) as second:
        with Worker(daemon.worker):
            rounds.until(Verdict.OK)
        rounds.until(Verdict.DISCONNECTED)
        rounds.until(Verdict.OK)
        assert moves(daemon, 1) == [spare]
        count, done = second.rounds, len(rounds.verdicts)
        with Worker(daemon.worker, named("first again")) as first:
            began = time.monotonic()
            until(lambda: rounds.next() and first.rounds, "the preferred worker drafts again")
            assert time.monotonic() - began >= HOLD_S
            assert second.rounds > count, "the spare one served until then"
            fallen = [verdict for verdict in rounds.verdicts[done:] if verdict is not Verdict.OK]
            assert len(fallen) <= 1
            assert moves(daemon, 2) == [spare, daemon.worker]
            assert daemon.scrape()["dsv41_proxyd_worker_moves_total"] == 2
    daemon.exactly("session ready", 1)


def test_a_worker_that_hangs_is_replaced(daemon: Daemon, rounds: Rounds, spare: str, short_dir: Path) -> None:
    with running_worker(short_dir, endpoint=daemon.worker) as process:
        rounds.until(Verdict.OK)
        with Worker(spare):
            process.process.send_signal(signal.SIGSTOP)
            try:
                rounds.until(Verdict.TIMEOUT)
                rounds.until(Verdict.OK)
            finally:
                process.process.send_signal(signal.SIGCONT)
            assert moves(daemon, 1) == [spare]


def test_a_worker_that_comes_and_goes_is_not_run_after(daemon: Daemon, rounds: Rounds, spare: str) -> None:
    with Worker(spare):
        rounds.until(Verdict.OK)
        for _ in range(3):
            with Worker(daemon.worker):
                time.sleep(HOLD_S / 4)
            assert rounds.next() is Verdict.OK
        assert moves(daemon, 1) == [spare]


def test_all_sessions_move_together_and_it_is_said_once(daemon: Daemon, rounds: Rounds, spare: str) -> None:
    with Worker(spare), Engine(daemon.path) as other:
        others = Rounds(other.ready("other"))
        with Worker(daemon.worker):
            rounds.until(Verdict.OK)
            others.until(Verdict.OK)
        rounds.until(Verdict.DISCONNECTED)
        rounds.until(Verdict.OK)
        others.until(Verdict.OK)
        assert moves(daemon, 1) == [spare]


def test_with_no_worker_anywhere_nothing_moves(daemon: Daemon, rounds: Rounds) -> None:
    daemon.wait_for("worker unreachable, waiting")
    assert rounds.next() is Verdict.DISCONNECTED
    before = daemon.resources()
    time.sleep(1.5)
    assert moves(daemon, 0) == []
    daemon.back_to(before)
    with Worker(daemon.worker):
        rounds.until(Verdict.OK)
    assert moves(daemon, 0) == []
