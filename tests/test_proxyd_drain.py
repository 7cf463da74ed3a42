# SPDX-License-Identifier: Apache-2.0
"""A planned end: said before it comes, rounds in flight finish, and an engine can tell it from a loss."""

from __future__ import annotations

import contextlib
import threading
import time

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxyd_engine import Engine, gone
from proxyd_harness import Daemon, until
from proxyd_worker import Rounds, Worker, friendly, reply_to

from hostflag import messages as m
from hostflag import wire
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict
from hostflag.wire import Kind
from proxyd.service.server import SHUTDOWN_LIMIT_S


class SlowWorker(Worker):
    """Answers as the contract asks, but holds rounds back while ``held``."""

    def __init__(self, endpoint: str) -> None:
        self.held = False
        self.release = threading.Event()
        super().__init__(endpoint, SlowWorker._slowly)

    @staticmethod
    def _slowly(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        assert isinstance(worker, SlowWorker)
        if header.kind is Kind.ROUND and worker.held:
            worker.release.wait(30)
            worker.send(parts[0], reply_to(header))
        else:
            friendly(worker, parts, header)

    def close(self) -> None:
        self.release.set()
        super().close()


@contextlib.contextmanager
def with_a_round_in_flight(directory: Path, *flags: str) -> Iterator[tuple[Daemon, Engine, SlowWorker, int]]:
    """Give daemon, engine, worker, and the round that the worker holds back."""
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(Daemon(directory, *flags))
        worker = SlowWorker(daemon.worker)
        stack.callback(worker.close)
        engine = stack.enter_context(Engine(daemon.path))
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        t = len(rounds.verdicts) + 1
        count, worker.held = worker.rounds, True
        engine.submit(t)
        until(lambda: worker.rounds > count, "the round is with the worker")
        yield daemon, engine, worker, t


@pytest.fixture
def slow(short_dir: Path) -> Iterator[tuple[Daemon, Engine, SlowWorker, int]]:
    with with_a_round_in_flight(short_dir, "--network-timeout-ms=1200") as all_of_it:
        yield all_of_it


def test_the_round_in_flight_finishes_and_later_ones_are_turned_away(
    slow: tuple[Daemon, Engine, SlowWorker, int],
) -> None:
    daemon, engine, worker, t = slow
    daemon.process.terminate()
    assert isinstance(engine.receive(), m.Draining)
    until(lambda: engine.word(Word.PHASE) == Phase.DRAINING, "the phase word")
    time.sleep(0.4)  # longer than a daemon waits that has no round in flight
    assert engine.verdict(t) is Verdict.OPEN
    worker.release.set()
    assert engine.finish(t) is Verdict.OK
    engine.submit(t + 1)
    assert engine.finish(t + 1) is Verdict.DRAINING
    assert isinstance(engine.receive(), m.Bye)
    gone(engine)
    assert engine.word(Word.PHASE) == Phase.GONE
    assert daemon.join() == 0


def test_a_worker_that_never_answers_does_not_hold_it_up(short_dir: Path) -> None:
    with with_a_round_in_flight(short_dir, "--network-timeout-ms=20000") as (daemon, engine, _worker, t):
        began = time.monotonic()
        daemon.process.terminate()
        assert engine.finish(t) is Verdict.DRAINING
        assert daemon.join() == 0
        assert time.monotonic() - began < SHUTDOWN_LIMIT_S + 5  # the slack is for a loaded machine
        assert engine.word(Word.PHASE) == Phase.GONE


def test_within_the_network_timeout_a_drain_ends_no_round_early(short_dir: Path) -> None:
    with with_a_round_in_flight(short_dir, "--network-timeout-ms=600") as (daemon, engine, _worker, t):
        daemon.process.terminate()
        assert engine.finish(t) is Verdict.TIMEOUT
        assert daemon.join() == 0


def test_a_killed_daemon_leaves_neither_word_nor_message(short_dir: Path) -> None:
    """By this an engine tells a loss from a planned end."""
    with Daemon(short_dir) as daemon, Engine(daemon.path) as engine:
        engine.ready()
        daemon.process.kill()
        gone(engine)
        daemon.join()
        assert engine.word(Word.PHASE) == Phase.RUNNING


def test_the_region_of_a_drained_session_runs_again_in_the_next(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, Engine(daemon.path) as engine:
        engine.ready()
        assert engine.round(1) is Verdict.DISCONNECTED
        daemon.process.terminate()
        gone(engine)
        daemon.join()
        assert engine.word(Word.PHASE) == Phase.GONE
        fd, engine.region_fd = engine.region_fd, -1
        with Daemon(short_dir) as second, Engine(second.path) as again:
            assert isinstance(again.attach(fd, 1), m.Ready)
            assert again.word(Word.PHASE) == Phase.RUNNING
            assert again.round(2) is Verdict.DISCONNECTED
