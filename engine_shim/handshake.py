# SPDX-License-Identifier: Apache-2.0
"""The handshake's words, one after the other; who says them, and with which region, is connection.py's and handover.py's."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from engine_shim import forks
from engine_shim.errors import ConnectionRefusedByDaemon, DaemonUnreachable, HandshakeFailed
from engine_shim.trust import check_sender
from hostflag import region as regions
from hostflag.channel import (
    BadMessage,
    Channel,
    ChannelClosed,
    ChannelTimeout,
    Received,
    ask_credentials,
    engine_end,
)
from hostflag.messages import Attach, Create, FromDaemon, Hello, Ready, Refused, Region, Welcome
from hostflag.region import RegionFault


Expected = TypeVar("Expected", bound=FromDaemon)
Patience = Callable[[Channel[FromDaemon]], bool]
"""Waits until something can be read, or for as long as it will: False then. It may raise, to end the handshake."""
MORE_FILES: Final = "Raise its limit of open files (RLIMIT_NOFILE), or find out what leaves them open"
NOT_NOW: Final = {BlockingIOError: "it accepts no more connections", TimeoutError: "it accepts no connection"}


class NoSocket(DaemonUnreachable):
    """The engine's process is short of something; whether there is a daemon is not known."""


def reach(path: Path, timeout_s: float) -> Channel[FromDaemon]:
    """Connect; ``timeout_s`` 0 does not wait for a place in the daemon's queue. Raises DaemonUnreachable."""
    with forks.no_fork():
        sock = _socket(path)
        channel = forks.close_in_children(engine_end(sock))
    try:
        ask_credentials(sock)
        sock.settimeout(timeout_s)
        sock.connect(str(path))
        sock.setblocking(True)
    except OSError as error:
        sock.close()
        what = NOT_NOW.get(type(error), error.strerror or str(error))
        raise DaemonUnreachable(
            f"no daemon at {path}: {what}. Is dsv41-proxyd running with --socket {path}?"
        ) from error
    return channel


def _socket(path: Path) -> socket.socket:
    try:
        return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    except OSError as error:
        raise NoSocket(
            f"this process has no socket for the daemon at {path}: {error.strerror or error}. {MORE_FILES}"
        ) from error


def patient_until(until: float) -> Patience:
    """Wait for what is to be read until ``until`` (``time.monotonic``)."""

    def wait(channel: Channel[FromDaemon]) -> bool:
        poller = select.poll()
        poller.register(channel.fileno(), select.POLLIN)
        return bool(poller.poll(max(0.0, until - time.monotonic()) * 1000))

    return wait


class Interrupted(Exception):
    """The shim is being closed."""


@dataclass(frozen=True, slots=True)
class Bell:
    """Tells that the shim is being closed: ``fd`` becomes, and stays, readable where ``over`` may have turned true."""

    fd: int
    over: Callable[[], bool]

    def patient_until(self, until: float) -> Patience:
        """Wait for what is to be read until ``until`` (``time.monotonic``). Raises Interrupted once it is over."""

        def wait(channel: Channel[FromDaemon]) -> bool:
            poller = select.poll()
            poller.register(channel.fileno(), select.POLLIN)
            poller.register(self.fd, select.POLLIN)
            while True:
                ready = {fd for fd, _ in poller.poll(max(0.0, until - time.monotonic()) * 1000)}
                if self.over():
                    raise Interrupted
                if channel.fileno() in ready:
                    return True
                if not ready:
                    return False

        return wait


class Handshake:
    """
    One handshake on a channel that stays the caller's: ``greet``, then ``create`` or ``attach``, then ``ready``.

    Each raises ConnectionRefusedByDaemon or HandshakeFailed; then it is over. ``trusted``: the uids whose messages are taken.
    """

    def __init__(self, channel: Channel[FromDaemon], hello: Hello, patience: Patience, trusted: frozenset[int]) -> None:
        self._channel = channel
        self._hello = hello
        self._patience = patience
        self._trusted = trusted
        # Until there is a session, nobody else knows for certain what of these there is.
        self._passing = forks.Passing()
        self._passing.note(channel.fileno())

    def __enter__(self) -> Handshake:
        return self

    def __exit__(self, *_: object) -> None:
        self._passing.end()  # the traceback of one that failed keeps it: for how long is not known here

    def greet(self) -> Welcome:
        self._send(lambda: self._channel.send(self._hello))
        return self._take(Welcome)

    def create(self) -> int:
        """Return the fd of the daemon's new region, checked; it is the caller's."""
        self._send(lambda: self._channel.send(Create()))
        received = self._receive(Region)
        try:
            if len(received.fds) != 1:
                raise HandshakeFailed(f"the daemon sent {len(received.fds)} descriptors with its region, not one")
            header = regions.check(received.fds[0])
            if header.geometry != self._hello.geometry:
                raise HandshakeFailed("the daemon's region has another geometry than the one that was asked for")
            return received.fds.pop()
        except RegionFault as fault:
            raise HandshakeFailed(f"the daemon's region cannot be used: {fault}") from fault
        finally:
            received.close_fds()

    def bring(self, base: int) -> int:
        """Return the fd of a region of our own whose counter stands at ``base``, handed over to the daemon; it is the caller's."""
        try:
            with forks.no_fork():
                fd = regions.create(self._hello.geometry)
                self._passing.note(fd)
        except RegionFault as fault:
            raise HandshakeFailed(str(fault)) from fault
        try:
            regions.rebase(fd, base)
            self.attach(fd, base)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def attach(self, fd: int, base: int) -> None:
        """Hand a region over. From here on it is fenced until this connection's peer is gone, whatever comes of it."""
        self._send(lambda: self._channel.send(Attach(base=base), [fd]))

    def ready(self) -> Ready:
        return self._take(Ready)

    def _send(self, send: Callable[[], None]) -> None:
        try:
            send()
        except (ChannelClosed, ChannelTimeout) as error:
            # It may have said why before it closed.
            self._refusal_if_any()
            raise HandshakeFailed(f"the daemon ended the handshake: {error}") from error

    def _refusal_if_any(self) -> None:
        with contextlib.suppress(ChannelClosed, ChannelTimeout, BadMessage):
            received = self._channel.receive(0)
            received.close_fds()
            check_sender(received.credentials, self._trusted)
            if isinstance(received.message, Refused):
                raise ConnectionRefusedByDaemon(received.message.code, received.message.reason)

    def _take(self, kind: type[Expected]) -> Expected:
        received = self._receive(kind)
        if received.fds:
            count = len(received.fds)
            received.close_fds()
            raise HandshakeFailed(f"the daemon sent {count} descriptors with {kind.__name__}, which takes none")
        return received.message

    def _receive(self, kind: type[Expected]) -> Received[Expected]:
        message, fds = self._next(kind.__name__)
        if isinstance(message, kind):
            return Received(message, fds)
        for fd in fds:
            os.close(fd)
        if isinstance(message, Refused):
            raise ConnectionRefusedByDaemon(message.code, message.reason)
        raise HandshakeFailed(f"the daemon sent {type(message).__name__} where {kind.__name__} was due")

    def _next(self, due: str) -> tuple[FromDaemon, list[int]]:
        try:
            if not self._patience(self._channel):
                raise HandshakeFailed(f"the daemon did not send {due} in time: is it stopped or overloaded?")
            with forks.no_fork():
                received = self._channel.receive(0)
                for fd in received.fds:
                    self._passing.note(fd)
        except ChannelTimeout as error:
            raise HandshakeFailed(f"the daemon did not send {due} in time: is it stopped or overloaded?") from error
        except ChannelClosed as error:
            raise HandshakeFailed(f"the daemon closed the connection where {due} was due") from error
        except BadMessage as error:
            raise HandshakeFailed(f"the daemon sent no message of this protocol: {error}") from error
        try:
            check_sender(received.credentials, self._trusted)
        except HandshakeFailed:
            received.close_fds()
            raise
        return received.message, received.fds
