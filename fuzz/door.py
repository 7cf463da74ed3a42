# SPDX-License-Identifier: Apache-2.0
"""
The doors: hostile packets and descriptors at the daemon's socket, at an engine's and at an operator's end; hostile HTTP requests.

Real channels over a socket pair, the daemon's real handshake, operators and regions; a session that would start is only noted.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from engine_shim.errors import ShimError
from engine_shim.handshake import Handshake as EngineHandshake
from fuzz.cursor import Cursor
from fuzz.descriptors import descriptors, held
from fuzz.doordaemon import Door
from fuzz.doorwords import HELLO, packet
from fuzz.watch import begin, end, must
from hostflag import channel as channels
from hostflag.channel import BadMessage, Channel, ChannelClosed, ChannelTimeout
from hostflag.messages import Dump, FromDaemon, Status, ToOperator
from proxyd.operator import ctltext
from proxyd.views.http import HttpServer


MAX_PACKETS: Final = 8
EXPECTED: Final = (BadMessage, ChannelClosed, ChannelTimeout)


def one_input(data: bytes) -> None:
    """Raise whatever is wrong with what this input makes a door do."""
    cursor = Cursor(data)
    begin()
    before = held()
    cursor.one_of((_daemon, _daemon, _daemon, _engine, _operator, _http))(cursor)
    must(held() == before, "a descriptor that nobody closed")
    end()


@contextlib.contextmanager
def _pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def _send(sock: socket.socket, payload: bytes, fds: list[int]) -> None:
    """Send as a hostile peer does; whether it was taken is not its business."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    with contextlib.suppress(OSError):
        sock.sendmsg([payload], ancillary, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)


def _daemon(cursor: Cursor) -> None:
    hears_as_engine = cursor.byte() < 128
    with Door() as door, _pair() as (ours, theirs):
        door.welcome(ours.dup())
        for _ in range(MAX_PACKETS):
            if not cursor.left:
                break
            with descriptors(cursor) as fds:
                _send(theirs, packet(cursor), fds)
            if cursor.byte() < 128:  # else the next is there before this one is looked at
                door.settle()
                _hear(theirs, hears_as_engine)
        theirs.shutdown(socket.SHUT_WR)
        door.settle()
        _hear(theirs, hears_as_engine)


def _hear(sock: socket.socket, as_engine: bool) -> None:
    """Whatever a daemon says must be a message to whoever speaks with it: an engine, or an operator."""
    both: list[Channel[Any]] = [channels.engine_end(sock), channels.operator_end(sock)]
    while _readable(sock):
        first = both[0] if as_engine else both[1]
        payload = sock.recv(1 << 17, socket.MSG_PEEK)
        if not payload:
            return
        try:
            first.receive(0).close_fds()
        except BadMessage as fault:
            # The other's: decoded by hand, it was taken from the socket.
            other: object = ToOperator if as_engine else FromDaemon
            try:
                msgspec.json.decode(payload, type=other)
            except msgspec.MsgspecError:
                raise fault from None


def _readable(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def _engine(cursor: Cursor) -> None:
    """The engine's side of a handshake whose daemon is hostile: ShimError, or what was due."""
    with _pair() as (ours, theirs):
        channels.ask_credentials(ours)
        for _ in range(MAX_PACKETS):
            if not cursor.left:
                break
            with descriptors(cursor) as fds:
                _send(theirs, packet(cursor), fds)
        trusted = frozenset({os.geteuid()})
        channel = channels.engine_end(ours)
        handshake = EngineHandshake(channel, HELLO, lambda each: _readable(each.socket), trusted)
        try:
            handshake.greet()
            os.close(handshake.create())
            handshake.ready()
        except ShimError as fault:
            must(bool(str(fault)), "a refusal without a reason")
        _drain(channel)


def _drain(channel: Channel[Any]) -> None:
    for _ in range(2 * MAX_PACKETS):
        try:
            channel.receive(0).close_fds()
        except BadMessage as fault:
            must(bool(str(fault)), "a bad message without a reason")
        except (ChannelClosed, ChannelTimeout):
            return


def _operator(cursor: Cursor) -> None:
    """An operator's end, and what dsv41-proxyctl prints of it."""
    with _pair() as (ours, theirs):
        channel = channels.operator_end(ours)
        for _ in range(MAX_PACKETS):
            if not cursor.left:
                break
            with descriptors(cursor) as fds:
                _send(theirs, packet(cursor), fds)
            try:
                received = channel.receive(0)
            except EXPECTED as fault:
                must(bool(str(fault)), "a fault without a reason")
                continue
            received.close_fds()
            if isinstance(received.message, Status):
                ctltext.status_text(received.message)
            elif isinstance(received.message, Dump):
                ctltext.dump_text(received.message)


def _http(cursor: Cursor) -> None:
    server = HttpServer.__new__(HttpServer)
    server._pages = {"/metrics": Door.page}
    faults: list[Exception] = []
    server._on_fault = faults.append
    request = cursor.spoiled(
        cursor.one_of((b"GET /metrics HTTP/1.1\r\n\r\n", b"HEAD /metrics?a=b HTTP/1.0\r\nA: b\r\n\r\n"))
    )
    response = server.respond(request + cursor.rest())
    head, separator, body = response.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    must(bool(separator) and lines[0].startswith(b"HTTP/1.1 ") and not faults, "no response")
    length = [int(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"content-length:")]
    must(length == [len(body)] or (not body and len(length) == 1), "a length that is another than the body's")
