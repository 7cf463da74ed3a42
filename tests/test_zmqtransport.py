# SPDX-License-Identifier: Apache-2.0
"""The ZMQ transport: the libzmq it finds, peers that flood, stall, lie about ZMQ or go away in the middle of a message."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import resource
import socket

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import zmq

from fake_engine import GEOMETRY, SESSION, Ask, until
from fake_worker import FakeWorker, fake_worker
from loop_harness import MS, Running, running
from zmtp_peer import ZmtpPeer, frame

from hostflag.messages import Geometry
from hostflag.region import Word
from hostflag.verdicts import Verdict
from hostflag.wire import Kind, encode_header
from proxyd._daemon import ffi, lib
from proxyd.sessions.roundloop import EventKind, LinkState


BACKEND = str(importlib.import_module("zmq.backend.cython._zmq").__file__)
OPENED = frame(encode_header(Kind.OPENED, SESSION, 0, 2) + b"{}")


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with fake_worker() as one:
        yield one


def load(path: str) -> tuple[int, str, int]:
    """Return result, reason and version of a load."""
    loaded, reason = ffi.new("struct hfd_zmq **"), ffi.new("const char **")
    result = lib.hfd_zmq_load(os.fsencode(path), loaded, reason)
    if result < 0:
        text = ffi.string(reason[0])
        return result, text.decode() if isinstance(text, bytes) else str(text), 0
    version = lib.hfd_zmq_version(loaded[0])
    lib.hfd_zmq_free(loaded[0])
    return result, "", version


def test_the_libzmq_of_pyzmq_is_found() -> None:
    major, minor, patch = zmq.zmq_version_info()
    assert load(BACKEND) == (0, "", major * 10000 + minor * 100 + patch)


def test_a_library_that_is_not_loaded_is_not_loaded_now(tmp_path: Path) -> None:
    result, reason, _ = load(str(tmp_path / "libzmq.so.5"))
    assert result == -errno.ENOENT
    assert "loaded" in reason


def test_a_library_without_libzmqs_functions_is_refused_by_the_one_missing() -> None:
    import _ssl

    result, reason, _ = load(_ssl.__file__)
    assert result == -errno.ENOSYS
    assert "zmq_msg_init" in reason


@contextlib.contextmanager
def up(peer: ZmtpPeer, geometry: Geometry = GEOMETRY, **changes: int) -> Iterator[Running]:
    """Run a loop whose link leads to a bare ZMTP peer that has answered OPEN."""
    with running(peer.endpoint, geometry=geometry, **changes) as loop:
        loop.give()
        (opening,) = peer.handshake()
        assert opening[6] == Kind.OPEN
        peer.send(OPENED)
        loop.wait_link(LinkState.UP)
        yield loop


def flood(peer: ZmtpPeer, loop: Running, data: bytes) -> None:
    """Send the same again and again, until the other side hangs up. The control plane closes what the loop returns."""
    assert peer.socket
    peer.socket.settimeout(0.01)
    at = 0
    with contextlib.suppress(ConnectionError):
        while True:
            loop.hear()
            with contextlib.suppress(TimeoutError):
                at = (at + peer.socket.send(data[at:])) % len(data)


@pytest.mark.parametrize("part", [b"", b"x" * 200, b"x" * 60_000], ids=["empty", "short", "long"])
@pytest.mark.parametrize("waiting", [False, True], ids=["at rest", "in a round"])
def test_a_message_of_endless_parts_costs_its_sender_the_link(part: bytes, waiting: bool) -> None:
    """By itself libzmq would collect them without end, and hand out none."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ZmtpPeer() as peer, up(peer) as loop:
        if waiting:
            loop.engine.begin(1)
            peer.receive()
        endless = frame(part, more=True)
        flood(peer, loop, endless * max(1, 65536 // len(endless)))
        assert "floods" in loop.wait_for(EventKind.LINK_WANTED).reason
        if waiting:
            assert loop.engine.finish(1) is Verdict.DISCONNECTED
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown < 512, f"{grown} MiB: the kernel's buffers and what comes within a beat, not what comes in seconds"


def looked(loop: Running) -> None:
    """Wait until it has looked at what its link costs: at each beat."""
    beats = loop.counter("beats")
    until(lambda: loop.counter("beats") > beats + 2, "beats")


LARGE: Final = Geometry(
    slots=8, max_requests=4, state_slots=8, row_bytes=1 << 20, drafts=3, vocab=1000, window=16, ring_bytes=32 << 20
)
HEAP: Final = 96 << 20  # of rounds that wait to be sent: more than the daemon may grow by for a worker's flood


def test_over_a_unix_socket_what_waits_to_be_sent_is_no_flood(short_dir: Path) -> None:
    """A slow worker reads nothing for a while, and its daemon has large rounds for it."""
    with ZmtpPeer(short_dir / "w") as peer, up(peer, LARGE) as loop:
        looked(loop)
        ask = Ask(rows=30, draft=False, prefill=True)
        for t in range(1, HEAP // (30 << 20) + 2):
            loop.engine.begin(t, ask, context_only=True)
            loop.engine.finish(t)
        looked(loop)
        assert loop.heard(EventKind.LINK_WANTED) == []
        assert loop.counter("bytes_out") > HEAP


@pytest.mark.parametrize("part", [b"", b"x" * 60_000], ids=["empty", "long"])
def test_over_a_unix_socket_a_flood_is_bounded_by_what_it_costs(short_dir: Path, part: bytes) -> None:
    """A Unix socket counts no bytes; what is counted there is this process's memory, which is the transport's host."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ZmtpPeer(short_dir / "w") as peer, up(peer) as loop:
        loop.engine.begin(1)
        peer.receive()
        endless = frame(part, more=True)
        flood(peer, loop, endless * max(1, 65536 // len(endless)))
        assert "grew" in loop.wait_for(EventKind.LINK_WANTED).reason
        assert loop.engine.finish(1) is Verdict.DISCONNECTED
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    assert grown < 768, f"{grown} MiB"


def test_a_whole_message_of_too_many_parts_costs_its_sender_the_link() -> None:
    with ZmtpPeer() as peer, up(peer) as loop:
        loop.engine.begin(1)
        peer.receive()
        peer.send(frame(b"", more=True) * 2000 + frame(b""))
        assert loop.engine.finish(1) is Verdict.DISCONNECTED
        assert "endless parts" in loop.wait_for(EventKind.LINK_WANTED).reason


def test_parts_beyond_the_first_are_thrown_away_and_counted() -> None:
    with ZmtpPeer() as peer, up(peer) as loop:
        loop.engine.begin(1)
        peer.receive()
        peer.send(frame(b"nonsense", more=True) + frame(b"x", more=True) * 99 + frame(b""))
        until(lambda: loop.counter("extra_parts") == 100, "counted")
        assert loop.loop.link_state() is LinkState.UP


def test_a_message_that_is_too_long_costs_the_connection(worker: FakeWorker) -> None:
    """MAXMSGSIZE, libzmq's own: it does not connect again by itself after that."""
    with running(worker) as loop:
        loop.up(worker)
        loop.engine.begin(1)
        worker.expect_round()
        worker.send(bytes(1 << 20))
        assert loop.engine.finish(1) is Verdict.DISCONNECTED
        loop.wait_for(EventKind.LINK_DOWN)
        loop.up(worker)


def test_a_message_cut_off_in_the_middle_is_none() -> None:
    with ZmtpPeer() as peer, up(peer) as loop:
        loop.engine.begin(1)
        peer.receive()
        peer.send(frame(bytes(10_000))[:5_000])
        assert peer.socket
        peer.socket.close()
        assert loop.engine.finish(1) is Verdict.DISCONNECTED
        assert loop.counter("messages_in") == 1  # OPENED


@pytest.mark.parametrize("speech", [b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, bytes(64), b"\xff" * 64])
def test_a_peer_that_does_not_speak_zmq_is_no_link(speech: bytes) -> None:
    with ZmtpPeer() as peer, running(peer.endpoint) as loop:
        loop.give()
        for _ in range(2):  # the first may be one that only tried whether it can connect
            with peer.accept() as connection, contextlib.suppress(OSError):
                connection.sendall(speech)
                connection.shutdown(socket.SHUT_WR)
        assert loop.wait_for(EventKind.LINK_BARRED).reason
        assert loop.loop.link_state() is LinkState.CONNECTING
        assert loop.counter("links_barred") >= 1


def test_a_worker_that_takes_nothing_fails_the_round_and_loses_the_link() -> None:
    """Context-only rounds need no reply, so that only the full queue tells."""
    geometry = Geometry(
        slots=4, max_requests=4, state_slots=8, row_bytes=1 << 16, drafts=3, vocab=1000, ring_bytes=8 << 20
    )
    with ZmtpPeer() as peer, up(peer, geometry=geometry, network_timeout_ns=100 * MS) as loop:
        verdicts = [Verdict.OK]
        while verdicts[-1] is Verdict.OK and len(verdicts) < 50:
            t = len(verdicts)
            loop.engine.begin(t, Ask(rows=64, prefill=True), context_only=True)
            verdicts.append(loop.engine.finish(t))
        assert verdicts[-1] is Verdict.SEND_ERROR
        assert "takes nothing" in loop.wait_for(EventKind.LINK_WANTED).reason


def test_a_round_that_has_to_wait_for_room_goes_out_when_there_is_some() -> None:
    geometry = Geometry(
        slots=4, max_requests=4, state_slots=8, row_bytes=1 << 16, drafts=3, vocab=1000, ring_bytes=8 << 20
    )
    with ZmtpPeer() as peer, up(peer, geometry=geometry) as loop:
        t = 0
        while t < 50:
            t += 1
            loop.engine.begin(t, Ask(rows=64, prefill=True), context_only=True)
            beat = loop.engine.word(Word.BEAT)
            until(lambda t=t, b=beat: loop.engine.word(Word.RETIRED) == t or loop.engine.word(Word.BEAT) > b + 3, "")  # type: ignore[misc]
            if loop.engine.word(Word.RETIRED) != t:
                break
        assert loop.engine.verdict(t) is Verdict.OPEN, "the queues took more than they should"
        received = [peer.receive() for _ in range(t)]
        assert loop.engine.finish(t) is Verdict.OK
        assert [int.from_bytes(head[16:20], "little") for head, _ in received] == list(range(1, t + 1))


def test_a_connection_that_is_closed_accuses_nobody(worker: FakeWorker) -> None:
    """Its number is another socket's by now, and the monitor has not said so yet: that is no flood."""
    with running(worker) as loop:
        loop.up(worker)
        heavy = b"\x01" * (192 << 20)  # a process that is larger than any flood may be
        number = fd_connected_to(int(worker.endpoint.rpartition(":")[2]))
        kept = os.dup(number)
        there, other = socket.socketpair()
        os.dup2(there.fileno(), number)
        try:
            beats = loop.counter("beats")
            until(lambda: loop.counter("beats") > beats + 3, "looked at")
        finally:
            os.dup2(kept, number)
            os.close(kept)
            there.close()
            other.close()
        assert len(heavy)
        assert not loop.heard(EventKind.LINK_WANTED)
        assert loop.loop.link_state() is LinkState.UP


def fd_connected_to(port: int) -> int:
    """Return the socket of this process that is connected to a port of this machine."""
    found = []
    for path in list(Path("/proc/self/fd").iterdir()):
        if not (path.is_symlink() and str(path.readlink()).startswith("socket:")):
            continue
        with socket.socket(fileno=os.dup(int(path.name))) as one, contextlib.suppress(OSError):  # not connected
            if one.family in {socket.AF_INET, socket.AF_INET6} and one.getpeername()[1] == port:
                found.append(int(path.name))
    (number,) = found
    return number
