# SPDX-License-Identifier: Apache-2.0
"""The engine socket's door: whatever comes in, it is refused with a reason, and a running session goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import time

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from proxyd_engine import GEOMETRY, Engine, connect, gone, hello, last_word, refused, unharmed
from proxyd_harness import PATIENCE_S, Daemon, until

from hostflag import messages as m
from hostflag import region as regions
from hostflag.channel import engine_end
from hostflag.messages import MAX_MESSAGE_BYTES
from proxyd.service.server import MAX_HANDSHAKES
from proxyd.sessions.handshake import TIME_LIMIT_S


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("d")) as running:
        yield running


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[Engine]:
    """An engine that has only connected, beside one whose session runs."""
    with unharmed(daemon), Engine(daemon.path) as connected:
        yield connected


# A decoder has to get over it to find out what message it is.
NESTED = b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b',"type":"HELLO"}'


def raw(engine: Engine, payload: bytes, fds: list[int] | None = None) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    engine.channel.socket.sendmsg([payload], ancillary)


def changed(**changes: Any) -> bytes:
    """A HELLO as JSON with some fields set to what no type here allows."""
    fields = json.loads(msgspec.json.encode(hello()))
    return json.dumps({**fields, **changes}).encode()


def test_the_whole_handshake_and_a_goodbye(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready()
        regions.check(engine.region_fd)
        engine.channel.send(m.Goodbye())
        engine.channel.socket.shutdown(socket.SHUT_WR)
        assert isinstance(last_word(engine), m.Bye)
        gone(engine)
        daemon.wait_for("session over")


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'"HELLO"',
        b"\xff" * 100,
        b'{"type": "HELLO"}',
        b'{"type": "NOVEL"}',
        b'{"type": "REFUSED", "code": "x", "reason": "y"}',
        b'{"type": "WELCOME"}',
        b"[" * 60_000,
        b'{"type": "HELLO", "' + b"x" * 60_000 + b'": 1}',
        NESTED,
        changed(protocol=int("9" * 4000)),
        changed(extra=1),
        changed(deadline_ms="soon"),
        changed(deadline_ms=-1),
        changed(deadline_ms=1e300),
        changed(layout_hash="f" * 15),
        changed(protocol=None),
        changed(model="x" * 257),
        changed(geometry={"row_bytes": -1, "drafts": 5, "vocab": 10}),
        changed(geometry={"row_bytes": 1 << 40, "drafts": 5, "vocab": 10}),
        changed(engine={"name": "x", "rank": 1 << 40}),
    ],
    ids=lambda payload: payload[:24].decode(errors="replace"),
)
def test_no_message_of_the_protocol(engine: Engine, payload: bytes) -> None:
    raw(engine, payload)
    refused(engine, "message", "this daemon speaks protocol")


def test_what_a_refused_peer_sent_ahead_harms_nobody(daemon: Daemon, engine: Engine) -> None:
    """It is read past when the connection is closed: in the midst of the daemon's handling of the fault before."""
    daemon.process.send_signal(signal.SIGSTOP)  # both packets are there before the first is looked at
    try:
        raw(engine, b"\x00")
        raw(engine, NESTED)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    refused(engine, "message", "this daemon speaks protocol")
    with Engine(daemon.path) as another:
        another.ready("another")


def test_an_oversized_message(engine: Engine) -> None:
    engine.channel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_MESSAGE_BYTES)
    raw(engine, b" " * (MAX_MESSAGE_BYTES + 1))
    refused(engine, "message", "over the limit")


def test_an_empty_packet_closes_the_connection(engine: Engine) -> None:
    raw(engine, b"")
    gone(engine)


def test_an_empty_packet_in_a_running_session_ends_only_that(engine: Engine) -> None:
    engine.ready()
    raw(engine, b"")
    gone(engine)


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (hello(protocol=2), "protocol", "update the daemon"),
        (hello(protocol=0), "protocol", "update the engine's side"),
        (hello(protocol=-(2**62)), "protocol", "update the engine's side"),
        (hello(layout_hash="0" * 16), "layout", "install version"),
        (hello(geometry=msgspec.structs.replace(GEOMETRY, slots=6)), "geometry", "slots"),
        (hello(geometry=msgspec.structs.replace(GEOMETRY, ring_bytes=1 << 40)), "geometry", "ring_bytes"),
        (hello(geometry=msgspec.structs.replace(GEOMETRY, drafts=0)), "geometry", "drafts"),
        (hello(deadline_ms=150.0), "deadline", "--network-timeout-ms"),
        (hello(engine=m.EngineIdentity(name="")), "identity", "name"),
        (hello(engine=m.EngineIdentity(name="a\x1b[2Jb\n")), "identity", "control characters"),
        (hello(model="\r\n"), "identity", "model"),
        (m.Create(), "order", "HELLO was due"),
        (m.Attach(base=1), "order", "HELLO was due"),
        (m.Goodbye(), "order", "HELLO was due"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_first_message_that_is_refused(engine: Engine, message: m.Message, code: str, words: str) -> None:
    engine.channel.send(message)
    refused(engine, code, words)


@pytest.mark.parametrize("second", [hello(), m.Goodbye()], ids=["HELLO", "GOODBYE"])
def test_a_second_message_out_of_order(engine: Engine, second: m.Message) -> None:
    engine.ask(hello())
    engine.channel.send(second)
    refused(engine, "order", "CREATE or ATTACH was due")


@pytest.mark.parametrize("message", [hello(), m.Create()], ids=["HELLO", "CREATE"])
def test_a_running_session_that_breaks_the_protocol_ends(engine: Engine, message: m.Message) -> None:
    engine.ready()
    engine.channel.send(message)
    gone(engine)


def test_everything_sent_at_once_still_works(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.channel.send(hello(engine=m.EngineIdentity(name="hasty")))
        engine.channel.send(m.Create())
        engine.channel.send(m.Goodbye())
        assert [type(engine.receive()) for _ in range(4)] == [m.Welcome, m.Region, m.Ready, m.Bye]


def test_descriptors_that_nobody_asked_for_are_closed(daemon: Daemon) -> None:
    before = daemon.resources()
    for count in (1, 3, 200):
        with Engine(daemon.path) as engine:
            read, write = os.pipe()
            raw(engine, msgspec.json.encode(hello()), [write] * count)
            os.close(write)
            answer = last_word(engine)
            assert isinstance(answer, m.Refused), answer
            assert os.read(read, 1) == b"", "the daemon kept a descriptor"
            os.close(read)
    daemon.back_to(before)


def test_a_silent_engine_is_refused_in_time(engine: Engine) -> None:
    began = time.monotonic()
    refused(engine, "timeout")
    assert time.monotonic() - began >= TIME_LIMIT_S * 0.9


def test_silent_connections_do_not_keep_an_engine_out(daemon: Daemon) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Engine(daemon.path)) for _ in range(MAX_HANDSHAKES)]
        stack.enter_context(Engine(daemon.path)).ready("late")
        refused(silent[0], "busy", "said nothing")


def test_too_many_handshakes_at_once(daemon: Daemon) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(MAX_HANDSHAKES):
            slow = stack.enter_context(Engine(daemon.path))
            assert isinstance(slow.ask(hello(engine=m.EngineIdentity(name="slow", rank=number))), m.Welcome)
        refused(stack.enter_context(Engine(daemon.path)), "busy", "try again")
    until(lambda: daemon.scrape()["dsv41_proxyd_handshaking"] == 0, "the silent ones are forgotten")
    with Engine(daemon.path) as engine:
        engine.ready()


def test_an_engine_that_does_not_read_is_dropped(daemon: Daemon) -> None:
    with unharmed(daemon):
        connection = connect(daemon.path)
        channel = engine_end(connection)
        channel.send(hello())
        connection.close()
    daemon.wait_for("engine went away before it was ready")


def test_refusals_are_logged_with_a_reason_and_not_without_end(daemon: Daemon) -> None:
    before = len(daemon.said("engine refused"))
    for _ in range(50):
        with Engine(daemon.path) as engine:
            raw(engine, b"junk")
            refused(engine, "message")
    lines = daemon.said("engine refused")
    assert all(line["reason"] and line["code"] and line["uid"] == os.getuid() for line in lines if "uid" in line)
    assert len(lines) - before <= 2


def test_nothing_is_left_of_the_refused(daemon: Daemon) -> None:
    until(lambda: daemon.scrape()["dsv41_proxyd_handshaking"] == 0, "handshakes over", PATIENCE_S)
    until(lambda: daemon.scrape()['dsv41_proxyd_sessions{state="ending"}'] == 0, "sessions over")
    before = daemon.resources()
    for _ in range(100):
        with Engine(daemon.path) as engine:
            raw(engine, b"junk")
    # Less is fine: the connection of the scrape above may still have been open.
    until(lambda: all(n <= before[what] for what, n in daemon.resources().items()), f"resources as before: {before}")
