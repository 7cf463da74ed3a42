# SPDX-License-Identifier: Apache-2.0
"""The engine socket as messages: strict decoding, descriptors that never leak."""

from __future__ import annotations

import array
import fcntl
import os
import socket

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hostflag import channel
from hostflag.messages import (
    MAX_MESSAGE_BYTES,
    Attach,
    Bye,
    Create,
    EngineIdentity,
    FromDaemon,
    FromEngine,
    Geometry,
    Goodbye,
    Hello,
    Refused,
    Region,
)


HELLO = Hello(
    protocol=1,
    layout_hash="0" * 16,
    geometry=Geometry(row_bytes=8, drafts=1, vocab=2),
    deadline_ms=200,
    model="m",
    engine=EngineIdentity(name="e", rank=1, pid=2),
)


class Ends:
    """Both ends of a connection, as channels and as the sockets under them."""

    def __init__(self) -> None:
        self.daemon_socket, self.engine_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.daemon: channel.Channel[FromEngine] = channel.daemon_end(self.daemon_socket)
        self.engine: channel.Channel[FromDaemon] = channel.engine_end(self.engine_socket)


@pytest.fixture
def ends() -> Iterator[Ends]:
    both = Ends()
    yield both
    both.daemon.close()
    both.engine.close()


@contextmanager
def no_descriptor_leaks() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_message_arrives_as_it_was_sent(ends: Ends) -> None:
    ends.engine.send(HELLO)
    ends.engine.send(Create())
    ends.engine.send(Goodbye())
    ends.daemon.send(Refused(code="layout", reason="build both sides from the same source"))

    assert ends.daemon.receive(1).message == HELLO
    assert ends.daemon.receive(1).message == Create()
    assert ends.daemon.receive(1).message == Goodbye()
    assert ends.engine.receive(1).message == Refused(code="layout", reason="build both sides from the same source")


def test_what_nests_without_end_is_a_bad_message(ends: Ends) -> None:
    """Before the type of a message is known, a decoder has to get over whatever stands there."""
    packet = b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b',"type":"BYE"}'
    for sender, receiver in ((ends.engine_socket, ends.daemon), (ends.daemon_socket, ends.engine)):
        sender.send(packet)
        with pytest.raises(channel.BadMessage, match="recursion"):
            receiver.receive(1)


def test_descriptors_ride_along_and_do_not_cross_an_exec(ends: Ends) -> None:
    with Path("/dev/null").open("rb") as null:
        ends.daemon.send(Region(bytes=1), [null.fileno()])
        received = ends.engine.receive(1)

        assert len(received.fds) == 1
        assert os.fstat(received.fds[0]).st_rdev == os.fstat(null.fileno()).st_rdev
        assert fcntl.fcntl(received.fds[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        with no_descriptor_leaks():
            copy = os.dup(null.fileno())
            os.close(copy)
        received.close_fds()
        assert received.fds == []


@pytest.mark.parametrize(
    "packet",
    [
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"type":"NOPE"}',
        b'{"type":"CREATE","more":1}',
        b'{"type":"ATTACH"}',
        b'{"type":"ATTACH","base":-1}',
        b'{"type":"ATTACH","base":4294967296}',
        b'{"type":"ATTACH","base":"1"}',
        b'{"type":"HELLO","protocol":1}',
        b'{"type":"WELCOME","session":"0000000000000000","pid":1,"version":"x","network_timeout_ms":1}',
        b"[" * 60000,
        b"\0" * 100,
    ],
)
def test_what_is_no_message_is_refused_and_its_descriptors_are_closed(ends: Ends, packet: bytes) -> None:
    with Path("/dev/null").open("rb") as null, no_descriptor_leaks():
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()]))]
        ends.engine_socket.sendmsg([packet], rights)
        with pytest.raises(channel.BadMessage):
            ends.daemon.receive(1)


def test_a_message_over_the_limit_is_refused_on_both_sides(ends: Ends) -> None:
    with pytest.raises(channel.BadMessage, match="over the limit"):
        ends.daemon.send(Refused(code="x", reason="y" * MAX_MESSAGE_BYTES))
    ends.engine_socket.send(b" " * (MAX_MESSAGE_BYTES + 1))
    with pytest.raises(channel.BadMessage, match="over the limit"):
        ends.daemon.receive(1)


@pytest.mark.parametrize("count", [channel.MAX_FDS, channel.MAX_FDS + 6, 200])
def test_surplus_descriptors_are_closed(ends: Ends, count: int) -> None:
    with Path("/dev/null").open("rb") as null, no_descriptor_leaks():
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null.fileno()] * count))]
        ends.engine_socket.sendmsg([b'{"type":"CREATE"}'], rights)
        if count > channel.MAX_FDS:
            with pytest.raises(channel.BadMessage, match="descriptors"):
                ends.daemon.receive(1)
        else:
            received = ends.daemon.receive(1)
            assert len(received.fds) == count
            received.close_fds()


def test_an_empty_packet_reads_as_closed(ends: Ends) -> None:
    ends.engine_socket.send(b"")
    with pytest.raises(channel.ChannelClosed, match="empty packet"):
        ends.daemon.receive(1)


def test_a_gone_peer_is_closed_for_reading_and_writing(ends: Ends) -> None:
    ends.engine.close()
    with pytest.raises(channel.ChannelClosed):
        ends.daemon.receive(1)
    with pytest.raises(channel.ChannelClosed, match="Bye"):
        ends.daemon.send(Bye())


def test_a_silent_peer_is_a_timeout(ends: Ends) -> None:
    with pytest.raises(channel.ChannelTimeout):
        ends.daemon.receive(0)
    with pytest.raises(channel.ChannelTimeout, match=r"0\.01 s"):
        ends.daemon.receive(0.01)


def test_a_peer_that_does_not_read_never_blocks_the_sender(ends: Ends) -> None:
    def send_for_ever() -> None:
        for _ in range(100_000):
            ends.engine.send(Attach(base=1))

    with pytest.raises(channel.ChannelTimeout, match="does not read"):
        send_for_ever()
