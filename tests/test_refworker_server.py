# SPDX-License-Identifier: Apache-2.0
"""A running reference worker, spoken to as docs/CONTRACT.md says."""

from __future__ import annotations

import zlib

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import zmq

from worker_peer import GEOMETRY, Ask, Peer, Worker, connected, make_round, opening, running_worker

from hostflag.control import Close, Opened, Refused
from hostflag.messages import EngineIdentity
from hostflag.wire import Kind, Status, decode_control, encode_control, encode_header, encode_round
from refworker.mock import Mock
from refworker.sessions import MAX_SESSIONS, SILENCE_S, NotOpened, Sessions


ANSWER_OF_NOBODY: Final = [(i * 40503) % GEOMETRY.vocab for i in range(GEOMETRY.drafts)]  # mock, without a row


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with running_worker(tmp_path_factory.mktemp("worker")) as running:
        yield running
        assert running.process.poll() is None
        assert "internal error" not in running.log()


@pytest.fixture
def peer(worker: Worker) -> Iterator[Peer]:
    with connected(worker.endpoint, 1) as peers:
        yield peers[0]


def test_a_session_drafts(peer: Peer) -> None:
    assert peer.opened().drafter == "mock"
    for number in range(50):
        ask = Ask(number % 8, number // 8, range(number, number + 3), anchor=1)
        message = peer.send(ask, seed=number)
        crc = zlib.crc32(message.rows[-GEOMETRY.row_bytes :])
        assert list(peer.reply().ids) == [(crc + i * 40503) % GEOMETRY.vocab for i in range(GEOMETRY.drafts)]


def test_a_round_may_follow_open_at_once(peer: Peer) -> None:
    peer.socket.send(encode_control(1, opening()))
    peer.send(Ask(1, anchor=1))
    assert isinstance(peer.control(), Opened)
    assert peer.reply().status is Status.OK


def test_context_only_rounds_are_taken_and_not_answered(peer: Peer) -> None:
    peer.opened()
    message = peer.send(Ask(1, 1, [0]), context_only=True)
    reply = peer.draft(Ask(1, 1, anchor=1))
    assert reply.ids[0] == zlib.crc32(message.rows) % GEOMETRY.vocab


def test_a_ping_is_answered_where_the_session_is_open(peer: Peer) -> None:
    peer.socket.send(encode_header(Kind.PING, 1, 5))
    assert peer.control() == Refused(code="unknown-session", reason="the session is not open here: open it again")
    peer.opened()
    assert peer.ping(0xFFFF_FFFF) == (Kind.PONG, 1, 0xFFFF_FFFF, 0)


def test_sessions_do_not_see_each_other(worker: Worker) -> None:
    with connected(worker.endpoint, 11, 12) as (one, other):
        assert one.opened() == other.opened()
        message = one.send(Ask(1, 1, [0], anchor=1))
        assert list(other.draft(Ask(1, 1, anchor=1)).ids) == ANSWER_OF_NOBODY
        assert one.reply().ids[0] == zlib.crc32(message.rows) % GEOMETRY.vocab


def test_opened_again_a_session_starts_empty(peer: Peer) -> None:
    for _ in range(2):
        peer.opened()
        assert list(peer.draft(Ask(1, 1, anchor=1)).ids) == ANSWER_OF_NOBODY
        peer.draft(Ask(1, 1, [0], anchor=1))


def test_on_another_connection_a_session_is_not_open(peer: Peer, worker: Worker) -> None:
    peer.opened()
    with connected(worker.endpoint, 1) as (stranger,):
        assert stranger.draft(Ask(1, 1, [5], anchor=1)).status is Status.UNKNOWN_SESSION
        stranger.socket.send(encode_control(1, Close(reason="not mine")))
        assert stranger.draft(Ask(1, anchor=1)).status is Status.UNKNOWN_SESSION
        assert list(peer.draft(Ask(1, 1, anchor=1)).ids) == ANSWER_OF_NOBODY
        # OPEN moves it there.
        stranger.opened()
        assert stranger.draft(Ask(1, anchor=1)).status is Status.OK
        assert peer.draft(Ask(1, anchor=1)).status is Status.UNKNOWN_SESSION


def test_a_closed_session_is_not_open(peer: Peer) -> None:
    peer.opened()
    peer.socket.send(encode_control(1, Close(reason="done")))
    assert peer.draft(Ask(1, anchor=1)).status is Status.UNKNOWN_SESSION


def test_context_only_rounds_of_nobody_get_no_answer(peer: Peer) -> None:
    peer.send(Ask(1, 1, [5]), context_only=True)
    assert isinstance(peer.open(), Opened)  # and not a REPLY before it


def test_the_same_engine_ends_its_older_session(worker: Worker) -> None:
    with connected(worker.endpoint, 21, 22, 23) as (older, newer, other):
        newer.name = older.name
        older.opened()
        other.opened()
        newer.opened()
        gone = older.control()
        assert isinstance(gone, Refused)
        assert gone.code == "replaced"
        assert older.draft(Ask(1, anchor=1)).status is Status.UNKNOWN_SESSION
        assert newer.draft(Ask(1, anchor=1)).status is Status.OK
        assert other.draft(Ask(1, anchor=1)).status is Status.OK


def test_sessions_are_capped(worker: Worker) -> None:
    with connected(worker.endpoint, 1) as (peer,):
        answers = []
        for session in range(1000, 1000 + MAX_SESSIONS + 1):
            peer.socket.send(encode_control(session, opening(name=f"engine {session}")))
            header, part = peer.receive()
            answers.append(decode_control(header, part))
        assert isinstance(answers[-1], Refused)
        assert answers[-1].code == "sessions"
        for session in range(1000, 1000 + MAX_SESSIONS + 1):
            peer.socket.send(encode_control(session, Close(reason="done")))
        peer.opened()  # there is room again


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (encode_control(1, opening(protocol=2)), "protocol"),
        (encode_control(1, opening())[:4] + b"\x02" + encode_control(1, opening())[5:], "protocol"),
        (encode_header(Kind.OPEN, 1, 0, 2) + b"{}", "malformed"),
        (encode_header(Kind.OPEN, 1, 0, 1) + b"\xff", "malformed"),
        (encode_control(1, opening()).replace(b'"vocab":1000', b'"vocab":0000'), "malformed"),
        (encode_control(1, opening()).replace(b'"vocab":1000', b'"vocab":-100'), "malformed"),
    ],
)
def test_an_open_that_does_not_fit_is_refused_with_a_reason(peer: Peer, part: bytes, code: str) -> None:
    peer.socket.send(part)
    answer = peer.control()
    assert isinstance(answer, Refused)
    assert answer.code == code
    assert answer.reason


def test_a_round_that_does_not_fit_is_not_used(peer: Peer) -> None:
    peer.opened()
    head, rows = (bytes(part) for part in encode_round(make_round([Ask(1, 1, [0, 1], anchor=1)])))
    peer.number = 1
    for parts in ([head], [head, rows[:-1]], [head, rows, b""], [fitted(head[:-4]), rows]):
        peer.socket.send_multipart(parts)
        assert peer.reply().status is Status.BAD_ROUND
    assert list(peer.draft(Ask(1, 1, anchor=1)).ids) == ANSWER_OF_NOBODY


def fitted(part: bytes) -> bytes:
    """Give a part that was cut a header that fits its length."""
    body = part[len(encode_header(Kind.ROUND, 1)) :]
    return encode_header(Kind.ROUND, 1, 1, len(body)) + body


def test_two_workers_have_two_names(worker: Worker, tmp_path: Path) -> None:
    with (
        running_worker(tmp_path) as another,
        connected(another.endpoint, 1) as (peer,),
        connected(worker.endpoint, 1) as (other,),
    ):
        assert peer.opened().worker != other.opened().worker


def test_a_worker_that_comes_back_does_not_know_the_session(short_dir: Path) -> None:
    endpoint = f"ipc://{short_dir}/w"
    with connected(endpoint, 1) as (peer,):
        with running_worker(short_dir, endpoint=endpoint) as first:
            peer.opened()
            assert first.stop() == 0
        with running_worker(short_dir, endpoint=endpoint):
            assert peer.draft(Ask(1, anchor=1)).status is Status.UNKNOWN_SESSION
            peer.opened()
            assert peer.draft(Ask(1, anchor=1)).status is Status.OK


def test_silent_sessions_are_forgotten() -> None:
    sessions = Sessions(Mock)
    sessions.open(1, b"a", opening(name="silent"), 0.0)
    sessions.open(2, b"b", opening(name="heard of"), 0.0)
    heard = sessions.find(2, b"b")
    assert heard is not None
    heard.seen = 100.0
    sessions.reap(SILENCE_S)
    assert len(sessions) == 2
    sessions.reap(SILENCE_S + 1)
    assert sessions.find(1, b"a") is None
    assert sessions.find(2, b"b") is heard


def test_ranks_of_one_engine_are_different_engines() -> None:
    sessions = Sessions(Mock, limit=2)
    assert sessions.open(1, b"a", opening(rank=0), 0.0) == []
    assert sessions.open(2, b"a", opening(rank=1), 0.0) == []
    with pytest.raises(NotOpened):
        sessions.open(3, b"a", opening(rank=2), 0.0)
    # A session that takes over needs no room.
    assert [older.number for older in sessions.open(4, b"a", opening(rank=1), 0.0)] == [2]
    assert opening(rank=1).engine == EngineIdentity(name="engine", rank=1)


def test_answers_that_nobody_reads_hold_nothing_up(worker: Worker) -> None:
    """Ten MiB of refusals for a peer that never reads: more than the kernel and two queues take."""
    body = b'{"' + b"x" * 4096 + b'":1}'
    part = encode_header(Kind.OPEN, 31, 0, len(body)) + body
    with connected(worker.endpoint, 32) as (peer,), zmq.Context() as context, context.socket(zmq.DEALER) as greedy:
        greedy.setsockopt(zmq.LINGER, 0)
        greedy.setsockopt(zmq.RCVHWM, 1)
        greedy.setsockopt(zmq.RCVBUF, 4096)
        greedy.connect(worker.endpoint)
        peer.opened()
        for _ in range(5000):
            greedy.send(part)
        for _ in range(20):
            assert peer.draft(Ask(1, anchor=1)).status is Status.OK
        assert "message not sent" in worker.log()
