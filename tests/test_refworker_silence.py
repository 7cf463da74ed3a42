# SPDX-License-Identifier: Apache-2.0
"""Engines that died without a word keep nobody out: the session that was silent longest makes room, one that is alive never."""

from __future__ import annotations

import os
import signal
import time

from pathlib import Path

import pytest
import zmq

from test_refworker_process import run
from worker_peer import Ask, Peer, Worker, connected, opening, running_worker

from hostflag.control import Opened, Refused
from hostflag.wire import Kind, Status, decode_control, encode_control
from refworker.hearing import STEP_S, Hearing
from refworker.mock import Mock
from refworker.sessions import MAKES_ROOM_S, MAX_SESSIONS, NotOpened, Sessions


PING_S = 2.0  # docs/CONTRACT.md
DEAD = range(1000, 1000 + MAX_SESSIONS - 1)  # with one that is alive they are as many as there may be


def full(*seen: float) -> Sessions:
    """Return sessions 0, 1, ... last heard of at these times, as many as there may be."""
    sessions = Sessions(Mock, limit=len(seen))
    for number, when in enumerate(seen):
        sessions.open(number, b"a", opening(rank=number), when)
    return sessions


def test_the_one_silent_longest_makes_room() -> None:
    sessions = full(3.0, 1.0, 2.0)
    now = 3.0 + MAKES_ROOM_S + 0.1
    for number, gone in ((10, 1), (11, 2), (12, 0)):
        assert sessions.find(gone, b"a") is not None
        sessions.open(number, b"b", opening(rank=number), now)
        assert sessions.find(gone, b"a") is None
        assert len(sessions) == 3
    with pytest.raises(NotOpened) as caught:
        sessions.open(13, b"b", opening(rank=13), now)
    assert caught.value.code == "sessions"


def test_who_is_alive_keeps_its_place() -> None:
    sessions = full(0.0, 0.0)
    with pytest.raises(NotOpened):
        sessions.open(10, b"b", opening(rank=10), MAKES_ROOM_S)
    assert len(sessions) == 2
    assert MAKES_ROOM_S >= 10 * PING_S


def test_time_in_which_nobody_listened_is_no_silence() -> None:
    hearing = Hearing(100.0)
    hearing.caught_up(100.5)
    assert hearing.clock == 0.5
    hearing.caught_up(100.5 + 3600)
    assert hearing.clock == 0.5 + STEP_S


@pytest.mark.parametrize("seconds", ["0", "4.9", "301", "nan", "soon"])
def test_silly_silences(seconds: str) -> None:
    ended = run("--silent-s", seconds)
    assert ended.returncode == 2
    assert "is not a number of seconds from 5 to 300" in ended.stderr


def open_all(peer: Peer) -> None:
    """Open the sessions that will be heard of no more."""
    for session in DEAD:
        peer.socket.send(encode_control(session, opening(name=f"engine {session}")))
    for session in DEAD:
        header, part = peer.receive()
        assert header.session == session
        assert isinstance(decode_control(header, part), Opened)


@pytest.mark.slow
def test_64_dead_engines_keep_a_new_one_out_only_as_long_as_they_may_be_alive(tmp_path: Path) -> None:
    with (
        running_worker(tmp_path, "--silent-s", "5") as worker,
        connected(worker.endpoint, 1, 2, 3) as (alive, dead, newcomer),
    ):
        alive.opened()
        open_all(dead)
        refused = newcomer.open()
        assert isinstance(refused, Refused)
        assert refused.code == "sessions"
        began = time.monotonic()
        while time.monotonic() - began < 5.5:
            assert alive.ping().kind is Kind.PONG
            time.sleep(PING_S / 2)
        newcomer.opened()
        assert newcomer.draft(Ask(1, anchor=1)).status is Status.OK
        assert alive.draft(Ask(1, anchor=1)).status is Status.OK
        assert "its place is needed" in worker.log()


def stopped(worker: Worker, seconds: float) -> None:
    os.kill(worker.process.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(worker.process.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_worker_that_was_stopped_takes_nobody_for_silent(tmp_path: Path) -> None:
    with running_worker(tmp_path, "--silent-s", "5") as worker, connected(worker.endpoint, 1, 2) as (alive, newcomer):
        alive.opened()
        open_all(alive)
        newcomer.socket.setsockopt(zmq.RCVTIMEO, 10_000)
        stopped(worker, 6.0)
        refused = newcomer.open()
        assert isinstance(refused, Refused)
        assert alive.ping().kind is Kind.PONG
