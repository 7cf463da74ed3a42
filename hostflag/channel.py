# SPDX-License-Identifier: Apache-2.0
"""
The engine socket as messages: SOCK_SEQPACKET, one strict JSON message a packet, file descriptors by SCM_RIGHTS.

Whoever receives decides what an end of file means: for the engine only POLLHUP says that the daemon is gone, since an
empty packet reads like an end of file.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Generic, TypeVar

import msgspec

from hostflag.messages import MAX_MESSAGE_BYTES, FromDaemon, FromEngine, Message, ToDaemon, ToOperator


# More than any message carries, so that surplus descriptors reach us and are closed instead of leaking.
MAX_FDS: Final = 4
_INT_BYTES: Final = array.array("i").itemsize
_CREDENTIALS: Final = struct.Struct("iII")

Incoming = TypeVar("Incoming")


class ChannelClosed(Exception):
    """The other end is gone."""


class ChannelTimeout(Exception):
    """Nothing came in time."""


class BadMessage(Exception):
    """What came is no message of this protocol; the text says why."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who sent a message, by the kernel's word. ``pid`` is 0 where it is in a process namespace that this one cannot see."""

    pid: int
    uid: int
    gid: int


@dataclass
class Received(Generic[Incoming]):
    """
    A message and the descriptors that came with it; whoever takes this closes them.

    ``credentials``: None unless the socket asked for them (``ask_credentials``) before the message was sent.
    """

    message: Incoming
    fds: list[int] = field(default_factory=list)
    credentials: Credentials | None = None

    def close_fds(self) -> None:
        """Close what nobody took."""
        while self.fds:
            os.close(self.fds.pop())


class Channel(Generic[Incoming]):
    """One end of an engine socket. It owns the socket."""

    def __init__(self, sock: socket.socket, incoming: object) -> None:
        self.socket = sock
        self._decoder: msgspec.json.Decoder[Incoming] = msgspec.json.Decoder(incoming)

    def __enter__(self) -> Channel[Incoming]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.socket.fileno()

    def close(self) -> None:
        """Close the socket. Closing twice is harmless."""
        self.socket.close()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """
        Send one message.

        Raises ChannelClosed where the other end is gone, and ChannelTimeout where it does not read.
        """
        payload = msgspec.json.encode(message)
        if len(payload) > MAX_MESSAGE_BYTES:
            raise BadMessage(f"message of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}")
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self.socket.sendmsg([payload], ancillary, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except (BlockingIOError, TimeoutError) as error:
            raise ChannelTimeout("the other end does not read its socket") from error
        except OSError as error:
            raise ChannelClosed(f"cannot send {type(message).__name__}: {error.strerror}") from error

    def receive(self, timeout: float | None = None) -> Received[Incoming]:
        """
        Return the next message; ``timeout`` in seconds, None waits for ever, 0 only looks.

        Raises ChannelTimeout, ChannelClosed, or BadMessage (descriptors that came along are closed).
        """
        if timeout != 0:
            self._wait_readable(timeout)
        payload, fds, credentials, flags = self._receive_packet()
        received: Received[Incoming] | None = None
        try:
            received = Received(self._decode(payload, flags, len(fds)), fds, credentials)
        finally:
            if received is None:
                for fd in fds:
                    os.close(fd)
        return received

    def _wait_readable(self, timeout: float | None) -> None:
        poller = select.poll()
        poller.register(self.socket.fileno(), select.POLLIN)
        deadline = None if timeout is None else time.monotonic() + timeout
        milliseconds = None if timeout is None else timeout * 1000
        if not poller.poll(milliseconds):
            elapsed = 0.0 if deadline is None or timeout is None else timeout
            raise ChannelTimeout(f"no message within {elapsed:g} s")

    def _receive_packet(self) -> tuple[bytes, list[int], Credentials | None, int]:
        # Not socket.recv_fds: it drops MSG_CMSG_CLOEXEC, and a child would then hold the session's descriptors open.
        space = socket.CMSG_SPACE(MAX_FDS * _INT_BYTES) + socket.CMSG_SPACE(_CREDENTIALS.size)
        flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        try:
            payload, ancillary, got_flags, _ = self.socket.recvmsg(MAX_MESSAGE_BYTES, space, flags)
        except BlockingIOError as error:
            raise ChannelTimeout("nothing to read") from error
        except OSError as error:
            raise ChannelClosed(f"cannot receive: {error.strerror}") from error
        fds, credentials = array.array("i"), None
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % _INT_BYTES])
            elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) == _CREDENTIALS.size:
                credentials = Credentials(*_CREDENTIALS.unpack(data))
        return payload, list(fds), credentials, got_flags

    def _decode(self, payload: bytes, flags: int, fd_count: int) -> Incoming:
        if not payload:
            raise ChannelClosed("end of file, or an empty packet")
        if flags & socket.MSG_TRUNC:
            raise BadMessage(f"message over the limit of {MAX_MESSAGE_BYTES} bytes")
        if flags & socket.MSG_CTRUNC or fd_count > MAX_FDS:
            raise BadMessage(f"more than {MAX_FDS} descriptors, or no room for them (RLIMIT_NOFILE)")
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            # Recursion: what stands before the type of a message is nested as its sender likes.
            raise BadMessage(str(error)) from error


def ask_credentials(sock: socket.socket) -> None:
    """
    Have every message say who sent it. Before ``connect``: what was sent earlier would name nobody.

    SO_PEERCRED says who called ``listen``; under socket activation that is systemd and not the daemon.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def daemon_end(sock: socket.socket) -> Channel[FromEngine]:
    """Return the daemon's end of an engine's connection."""
    return Channel(sock, FromEngine)


def accepted_end(sock: socket.socket) -> Channel[ToDaemon]:
    """Return the daemon's end of a connection of which nobody knows yet whether an engine or an operator made it."""
    return Channel(sock, ToDaemon)


def engine_end(sock: socket.socket) -> Channel[FromDaemon]:
    """Return the engine's end of a connection."""
    return Channel(sock, FromDaemon)


def operator_end(sock: socket.socket) -> Channel[ToOperator]:
    """Return an operator's end of a connection."""
    return Channel(sock, ToOperator)
