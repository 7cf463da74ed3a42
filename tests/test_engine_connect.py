# SPDX-License-Identifier: Apache-2.0
"""Connecting to daemons that refuse, lie, fall silent or send the wrong descriptors: a clear error, nothing left."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_harness import PATIENCE_S, SMALL, Ask, FakeDaemon, drained, engine, until
from engine_peer import WELCOME, Peer, Script, attempt, daemon

from engine_shim import (
    ConnectionRefusedByDaemon,
    DaemonUnreachable,
    HandshakeFailed,
    SessionOptions,
    SoftStream,
    connect,
)
from hostflag import messages as m
from hostflag import region as regions
from hostflag.channel import ChannelClosed
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Loss


def test_nobody_listens(short_dir: Path) -> None:
    with pytest.raises(DaemonUnreachable, match="Is dsv41-proxyd running"):
        attempt(short_dir / "nobody.sock")


def test_a_socket_of_another_kind(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(short_dir / "e.sock"))
        listener.listen(1)
        with pytest.raises(DaemonUnreachable):
            attempt(short_dir / "e.sock")


def test_a_daemon_that_accepts_nothing_more(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(short_dir / "e.sock"))
        listener.listen(0)
        for _ in range(3):
            other = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                other.connect(str(short_dir / "e.sock"))
        with pytest.raises((DaemonUnreachable, HandshakeFailed)):
            attempt(short_dir / "e.sock", timeout_s=0.1)


def test_a_refusal_comes_through_with_code_and_reason(short_dir: Path) -> None:
    def script(peer: Peer) -> None:
        hello = peer.hello()
        assert (hello.geometry, hello.model) == (SMALL, "test")
        peer.channel.send(m.Refused(code="model", reason="this daemon drafts for another model"))

    with daemon(short_dir, script) as path:
        with pytest.raises(ConnectionRefusedByDaemon, match="another model") as refused:
            attempt(path)
        assert refused.value.code == "model"


def test_a_geometry_out_of_bounds_is_our_own_error(short_dir: Path) -> None:
    with pytest.raises(HandshakeFailed, match="slots must be a power of two"):
        attempt(short_dir / "e.sock", geometry=msgspec.structs.replace(SMALL, slots=6))


def say(payload: bytes) -> Script:
    def script(peer: Peer) -> None:
        peer.hello()
        peer.raw(payload)
        peer.stay()

    return script


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        (b"\xff\x00garbage", "no message of this protocol"),
        (msgspec.json.encode(WELCOME)[:-9], "no message of this protocol"),
        (b'{"type":"WELCOME"}', "no message of this protocol"),
        (b'{"type":"SURPRISE"}', "no message of this protocol"),
        (msgspec.json.encode(m.Ready(locked=True)), "Ready where Welcome was due"),
        (b"", "where Welcome was due"),
    ],
)
def test_an_answer_that_is_none(short_dir: Path, payload: bytes, match: str) -> None:
    with daemon(short_dir, say(payload)) as path, pytest.raises(HandshakeFailed, match=match):
        attempt(path)


@pytest.mark.parametrize("silent_after", ["connect", "hello", "create", "region"])
def test_a_daemon_that_falls_silent(short_dir: Path, silent_after: str) -> None:
    def script(peer: Peer) -> None:
        if silent_after != "connect":
            peer.hello()
        if silent_after in {"create", "region"}:
            peer.channel.send(WELCOME)
            peer.channel.receive(PATIENCE_S)
        if silent_after == "region":
            fd = regions.create(SMALL)
            peer.send_region(fd)
            os.close(fd)
        peer.stay()

    with daemon(short_dir, script) as path:
        began = time.monotonic()
        with pytest.raises(HandshakeFailed, match="in time"):
            attempt(path, timeout_s=0.3)
        assert time.monotonic() - began >= 0.25


@pytest.mark.parametrize("gone_after", ["connect", "hello", "welcome", "region"])
def test_a_daemon_that_goes_away(short_dir: Path, gone_after: str) -> None:
    def script(peer: Peer) -> None:
        if gone_after == "connect":
            return
        peer.hello()
        if gone_after == "hello":
            return
        peer.channel.send(WELCOME)
        if gone_after == "welcome":
            return
        peer.channel.receive(PATIENCE_S)
        fd = regions.create(SMALL)
        peer.send_region(fd)
        os.close(fd)

    with daemon(short_dir, script) as path, pytest.raises(HandshakeFailed):
        attempt(path)


def test_descriptors_where_none_are_due(short_dir: Path) -> None:
    def script(peer: Peer) -> None:
        peer.hello()
        peer.channel.send(WELCOME, [0])
        peer.stay()

    with daemon(short_dir, script) as path, pytest.raises(HandshakeFailed, match="takes none"):
        attempt(path)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tick_ms": 0.0}, "tick_ns"),
        ({"starved_ms": 0.0}, "starved_ns"),
        ({"backlog_rows": 1 << 21}, "backlog_rows"),
    ],
)
def test_options_that_make_no_sense(short_dir: Path, options: dict[str, Any], match: str) -> None:
    with FakeDaemon(short_dir) as fake, SoftStream() as stream, pytest.raises(HandshakeFailed, match=match):
        connect(
            fake.path, geometry=SMALL, model="m", engine=EngineIdentity(name="e"), stream=stream,
            options=SessionOptions(**options),
        )  # fmt: skip


def test_what_a_session_knows_of_itself(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as fake, engine(fake) as (session, _, _):
        assert session.id == 0xABC
        assert session.welcome.network_timeout_ms == 150.0
        assert session.locked is (session.lock_reason is None)
        assert session.daemon_locked
        assert session.batch().max_requests == SMALL.max_requests


def test_goodbye_comes_when_everything_is_consumed_and_the_engine_closes_last(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as fake, engine(fake) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        fake.hand.finish(1)
        drained(stream)
        session.close()
        assert fake.farewell == ["Goodbye"]
        assert session.lost is Loss.NONE


def test_a_daemon_that_does_not_close_is_not_waited_for_for_ever(short_dir: Path) -> None:
    def script(peer: Peer) -> None:
        peer.asked_for_region()
        fd = regions.create(SMALL)
        peer.send_region(fd)
        peer.channel.send(m.Ready(locked=False, lock_reason="RLIMIT_MEMLOCK"))
        os.close(fd)
        assert isinstance(peer.channel.receive(PATIENCE_S).message, m.Goodbye)
        with pytest.raises(ChannelClosed):
            peer.channel.receive(PATIENCE_S)
        poller = select.poll()
        poller.register(peer.channel.fileno(), 0)
        assert not poller.poll(0), "the engine said SHUT_WR, but its end is open"
        peer.channel.send(m.Bye())
        until(lambda: poller.poll(0), "and is closed once the engine has waited")

    with daemon(short_dir, script) as path, SoftStream() as stream:
        session = connect(path, geometry=SMALL, model="m", engine=EngineIdentity(name="e"), stream=stream)
        assert (session.daemon_locked, session.daemon_lock_reason) == (False, "RLIMIT_MEMLOCK")
        session.close(timeout_s=0.5)
