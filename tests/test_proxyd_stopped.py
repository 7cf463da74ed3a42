# SPDX-License-Identifier: Apache-2.0
"""A daemon that was stopped while its engine went on: it sees the lost word and lets go without another write."""

from __future__ import annotations

import os
import signal
import threading

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxyd_engine import GEOMETRY, Engine, gone
from proxyd_harness import Daemon, until
from proxyd_worker import Rounds, Worker, friendly, reply_to

from hostflag import geometry as geometries
from hostflag import wire
from hostflag._hostflag import ffi, lib
from hostflag.verdicts import Verdict
from hostflag.wire import Kind


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir, "--network-timeout-ms=30000") as running:
        yield running


def written_by_the_daemon(engine: Engine) -> bytes:
    """Return all that a daemon can write, but for the word that says whether it sleeps."""
    layout = ffi.new("struct hf_layout *")
    assert lib.hf_layout_of(geometries.to_c(GEOMETRY), layout) == 0
    size = os.fstat(engine.region_fd).st_size
    whole = bytearray(os.pread(engine.region_fd, size, 0))
    waiting = layout.daemon_words + 3 * lib.HF_LINE
    whole[waiting : waiting + 4] = bytes(4)
    return bytes(whole[layout.shared_words : layout.slots] + whole[layout.replies : layout.stats])


def stopped(daemon: Daemon) -> None:
    daemon.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{daemon.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the daemon is stopped")


def check_that_it_lets_go(daemon: Daemon, engine: Engine, before: bytes) -> None:
    daemon.process.send_signal(signal.SIGCONT)
    gone(engine)
    assert written_by_the_daemon(engine) == before
    over = daemon.wait_for("session over")
    assert over["reason"] == "the engine gave the session up"
    said = [
        line for line in daemon.lines if line.get("session") == f"{engine.session:016x}" and line["level"] != "debug"
    ]
    assert [line["event"] for line in said if line["event"] != "worker up"] == [
        "session ready",
        "flight record",
        "session over",
    ]


def test_at_rest(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready()
        assert engine.round(1) is Verdict.DISCONNECTED
        stopped(daemon)
        before = written_by_the_daemon(engine)
        engine.set_words(lost=1)
        check_that_it_lets_go(daemon, engine, before)


def test_with_a_round_whose_reply_came_meanwhile(daemon: Daemon) -> None:
    asked, answer = threading.Event(), threading.Event()

    def late(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        if header.kind is not Kind.ROUND or not asked.is_set():
            friendly(worker, parts, header)
            return
        answer.wait(30)
        worker.send(parts[0], reply_to(header))

    with Worker(daemon.worker, late) as worker, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        t = len(rounds.verdicts) + 1
        count = worker.rounds
        asked.set()
        engine.submit(t)
        until(lambda: worker.rounds > count, "the round is with the worker")
        stopped(daemon)
        before = written_by_the_daemon(engine)
        engine.set_words(lost=1)
        answer.set()
        until(lambda: worker.idle, "the worker has answered")
        check_that_it_lets_go(daemon, engine, before)
        assert engine.verdict(t) is Verdict.OPEN


def test_a_round_submitted_while_it_was_stopped_is_left_alone(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready()
        assert engine.round(1) is Verdict.DISCONNECTED
        stopped(daemon)
        engine.submit(2)
        engine.set_words(lost=1)
        before = written_by_the_daemon(engine)
        check_that_it_lets_go(daemon, engine, before)
        assert engine.verdict(2) is Verdict.OPEN


def test_its_other_sessions_and_a_new_one_go_on(daemon: Daemon) -> None:
    with Engine(daemon.path) as lost, Engine(daemon.path) as other:
        lost.ready("lost")
        other.ready("other")
        stopped(daemon)
        lost.set_words(lost=1)
        daemon.process.send_signal(signal.SIGCONT)
        gone(lost)
        assert other.round(1) is Verdict.DISCONNECTED
        with Engine(daemon.path) as again:
            again.ready("lost")
            assert again.round(1) is Verdict.DISCONNECTED
