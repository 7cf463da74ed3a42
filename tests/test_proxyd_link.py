# SPDX-License-Identifier: Apache-2.0
"""The link to the worker: absent, coming, going, silent, refusing. The engine always gets its round back."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from proxyd_engine import GEOMETRY, Engine
from proxyd_harness import Daemon, until
from proxyd_worker import DRAFTS, SESSION, Rounds, Worker, friendly

from hostflag import wire
from hostflag.control import Open, Refused
from hostflag.verdicts import Verdict
from hostflag.wire import Kind
from proxyd.links.link import IO_THREADS


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir) as running:
        yield running


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[Engine]:
    with Engine(daemon.path) as connected:
        yield connected.ready()


@pytest.fixture
def rounds(engine: Engine) -> Rounds:
    return Rounds(engine)


def test_an_absent_worker_is_said_once(daemon: Daemon, engine: Engine) -> None:
    daemon.wait_for("worker unreachable, waiting")
    assert [engine.round(t) for t in range(1, 20)] == [Verdict.DISCONNECTED] * 19
    time.sleep(2)  # several tries to connect
    assert len(daemon.said("worker unreachable, waiting")) == 1
    assert not daemon.said("worker up")


def test_a_worker_comes_goes_and_comes_back(daemon: Daemon, rounds: Rounds) -> None:
    with Worker(daemon.worker) as worker:
        rounds.until(Verdict.OK)
        line = daemon.wait_for("worker up")
        assert (line["worker"], line["drafter"], line["endpoint"]) == ("w1", "test", daemon.worker)
        opening = worker.opens[0]
        assert isinstance(opening, Open)
        assert opening.geometry == SESSION
        assert (opening.model, opening.engine.name) == ("test", "engine")
    rounds.until(Verdict.DISCONNECTED)
    daemon.wait_for("worker link lost")
    with Worker(daemon.worker):
        rounds.until(Verdict.OK)
        assert {rounds.next() for _ in range(10)} == {Verdict.OK}


def test_the_drafts_reach_the_engine(daemon: Daemon, engine: Engine) -> None:
    with Worker(daemon.worker):
        Rounds(engine).until(Verdict.OK)
    wanted = struct.pack("5q", *DRAFTS)
    assert wanted in os.pread(engine.region_fd, os.fstat(engine.region_fd).st_size, 0)


def test_a_silent_worker_times_out_and_is_linked_anew(daemon: Daemon, rounds: Rounds) -> None:
    def silent(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        if header.kind is not Kind.ROUND:
            friendly(worker, parts, header)

    with Worker(daemon.worker, silent) as worker:
        rounds.until(Verdict.TIMEOUT)
        worker.answer = friendly
        rounds.until(Verdict.OK)
        assert len(worker.opens) >= 2
    assert daemon.scrape()["dsv41_proxyd_link_resets_total"] >= 1


def test_a_worker_that_refuses_is_said_with_its_reason(daemon: Daemon, rounds: Rounds) -> None:
    def refusing(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        if header.kind is Kind.OPEN:
            worker.send(
                parts[0], wire.encode_control(header.session, Refused(code="model", reason="another\x1b model"))
            )

    with Worker(daemon.worker, refusing):
        line = daemon.wait_for("worker refused the session")
        assert (line["code"], line["reason"]) == ("model", "another? model")
        assert rounds.next() is Verdict.REFUSED


def test_what_listens_there_is_no_worker(short_dir: Path) -> None:
    """A peer that speaks no ZMQ, and one that says nothing at all."""
    path = short_dir / "w"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()
        with Daemon(short_dir) as daemon, Engine(daemon.path) as engine:
            rounds = Rounds(engine.ready())
            stranger, _ = listening.accept()
            with stranger, contextlib.suppress(BrokenPipeError):  # it hangs up in the middle, and is right
                stranger.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 1000)
            assert rounds.next() is Verdict.DISCONNECTED
            silent, _ = listening.accept()
            with silent:
                assert rounds.next() is Verdict.DISCONNECTED
                daemon.wait_for("worker unreachable, waiting")
            listening.close()
            path.unlink()
            with Worker(daemon.worker):
                rounds.until(Verdict.OK)


def test_two_sessions_have_a_link_each(daemon: Daemon, engine: Engine) -> None:
    with Worker(daemon.worker) as worker, Engine(daemon.path) as other:
        other.ready("other")
        Rounds(engine).until(Verdict.OK)
        Rounds(other).until(Verdict.OK)
        names = {opening.engine.name for opening in worker.opens if isinstance(opening, Open)}
        assert names == {"engine", "other"}
        assert all(up for name, up in daemon.scrape().items() if "worker_up" in name)


def test_sessions_and_links_that_end_leave_nothing(daemon: Daemon) -> None:
    with Worker(daemon.worker):
        with Engine(daemon.path) as engine:
            Rounds(engine.ready()).until(Verdict.OK)
        daemon.wait_for("session over")
        # Ours, libzmq's own one, and those that read.
        until(lambda: daemon.resources()["threads"] == 2 + IO_THREADS, "the first session's thread")
        before = daemon.resources()
        for count in range(2, 30):
            with Engine(daemon.path) as engine:
                Rounds(engine.ready()).until(Verdict.OK)
            daemon.wait_for("session over", count)
        daemon.back_to(before)


def test_the_largest_message_is_that_of_the_geometry() -> None:
    from proxyd.links.link import max_message_bytes

    header, reply = 24, 16
    assert max_message_bytes(GEOMETRY) == header + 65_536
    wide = msgspec.structs.replace(GEOMETRY, max_requests=256, drafts=64, extra_bytes=1024)
    assert max_message_bytes(wide) == header + reply + 256 * (64 * 8 + 1024)
