# SPDX-License-Identifier: Apache-2.0
"""From a socket's path to a session: connect, shake hands, map the region."""

from __future__ import annotations

import os
import socket
import time

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from engine_shim._engine import ffi, lib
from engine_shim.errors import ConnectionRefusedByDaemon, DaemonUnreachable, HandshakeFailed
from engine_shim.options import SessionOptions
from engine_shim.session import Session
from engine_shim.softstream import NS, SoftStream
from hostflag import geometry as geometries
from hostflag import region as regions
from hostflag.channel import BadMessage, Channel, ChannelClosed, ChannelTimeout, Received, engine_end
from hostflag.messages import (
    PROTOCOL_VERSION,
    Attach,
    Create,
    EngineIdentity,
    FromDaemon,
    Geometry,
    Hello,
    Ready,
    Refused,
    Region,
    Welcome,
)
from hostflag.region import RegionFault


MS: Final = 1_000_000
Expected = TypeVar("Expected", bound=FromDaemon)


def connect(
    path: str | os.PathLike[str],
    *,
    geometry: Geometry,
    model: str,
    engine: EngineIdentity,
    stream: SoftStream,
    deadline_ms: float = 200.0,
    timeout_s: float = 5.0,
    options: SessionOptions | None = None,
) -> Session:
    """
    Return a session with the daemon at ``path``. Blocks up to ``timeout_s``: never call it on the engine thread.

    ``stream`` must outlive the session. Raises DaemonUnreachable, ConnectionRefusedByDaemon or HandshakeFailed; then nothing is
    left behind.
    """
    options = options or SessionOptions()
    until = time.monotonic() + timeout_s
    if reason := geometries.fault(geometry):
        raise HandshakeFailed(f"the geometry is out of bounds: {reason}")
    channel = _reach(Path(path), timeout_s)
    try:
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            layout_hash=geometries.layout_hash(),
            geometry=geometry,
            deadline_ms=deadline_ms,
            model=model,
            engine=engine,
        )
        return _Handshake(channel, hello, stream, options, until).run()
    except BaseException:
        channel.close()
        raise


def _reach(path: Path, timeout_s: float) -> Channel[FromDaemon]:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(timeout_s)
        sock.connect(str(path))
        sock.setblocking(True)
    except OSError as error:
        sock.close()
        what = "it accepts no more connections" if isinstance(error, BlockingIOError) else error.strerror or str(error)
        raise DaemonUnreachable(
            f"no daemon at {path}: {what}. Is dsv41-proxyd running with --socket {path}?"
        ) from error
    return engine_end(sock)


class _Handshake:
    """One handshake on a channel that stays the caller's."""

    def __init__(
        self, channel: Channel[FromDaemon], hello: Hello, stream: SoftStream, options: SessionOptions, until: float
    ) -> None:
        self._channel = channel
        self._hello = hello
        self._stream = stream
        self._options = options
        self._until = until

    def run(self) -> Session:
        self._send(lambda: self._channel.send(self._hello))
        welcome = self._take(Welcome)
        fd = self._bring_region() if self._options.base else self._ask_for_region()
        try:
            handle = self._open(fd, welcome)
        finally:
            os.close(fd)  # the map stays
        try:
            return Session(
                handle,
                channel=self._channel,
                stream=self._stream,
                geometry=self._hello.geometry,
                welcome=welcome,
                ready=self._take(Ready),
            )
        except BaseException:
            # Nothing was submitted, so nothing is waited for.
            lib.hfe_close(handle, NS, ffi.NULL)
            raise

    def _ask_for_region(self) -> int:
        """Return the fd of the daemon's new region, checked."""
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

    def _bring_region(self) -> int:
        """Return the fd of a region of our own whose counter stands at the base, handed over to the daemon."""
        try:
            fd = regions.create(self._hello.geometry)
        except RegionFault as fault:
            raise HandshakeFailed(str(fault)) from fault
        try:
            regions.rebase(fd, self._options.base)
            self._send(lambda: self._channel.send(Attach(base=self._options.base), [fd]))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _open(self, fd: int, welcome: Welcome) -> Any:
        options, geometry, deadline_ms = self._options, self._hello.geometry, self._hello.deadline_ms
        backlog = geometry.max_requests * geometry.window if options.backlog_rows is None else options.backlog_rows
        config = ffi.new("struct hfe_config *")
        config.session = int(welcome.session, 16)
        config.deadline_ns = int(deadline_ms * MS)
        config.tick_ns = int(options.tick_ms * MS)
        config.starved_ns = int(options.starved_ms * MS)
        config.beat_limit_ns = int(options.beat_limit(deadline_ms, welcome.network_timeout_ms) * MS)
        config.expiries_limit = options.expiries_limit
        config.backlog_rows = backlog
        config.socket = self._channel.fileno()
        config.realtime = options.realtime
        config.unbatched = not options.batched
        session = ffi.new("struct hfe_session **")
        reason = ffi.new("const char **")
        result = lib.hfe_open_soft(fd, self._stream.c, config, session, reason)
        if result < 0:
            text = ffi.string(reason[0]).decode() if reason[0] != ffi.NULL else "?"
            raise HandshakeFailed(f"the session cannot be opened: {text} ({os.strerror(-result)})")
        return session[0]

    def _send(self, send: Callable[[], None]) -> None:
        try:
            send()
        except (ChannelClosed, ChannelTimeout) as error:
            # It may have said why before it closed.
            self._refusal_if_any()
            raise HandshakeFailed(f"the daemon ended the handshake: {error}") from error

    def _refusal_if_any(self) -> None:
        try:
            received = self._channel.receive(0)
        except (ChannelClosed, ChannelTimeout, BadMessage):
            return
        received.close_fds()
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
        left = self._until - time.monotonic()
        try:
            received = self._channel.receive(max(0.0, left))
        except ChannelTimeout as error:
            raise HandshakeFailed(
                f"the daemon did not send {kind.__name__} in time: is it stopped or overloaded?"
            ) from error
        except ChannelClosed as error:
            raise HandshakeFailed(f"the daemon closed the connection where {kind.__name__} was due") from error
        except BadMessage as error:
            raise HandshakeFailed(f"the daemon sent no message of this protocol: {error}") from error
        message = received.message
        if isinstance(message, kind):
            return Received(message, received.fds)
        received.close_fds()
        if isinstance(message, Refused):
            raise ConnectionRefusedByDaemon(message.code, message.reason)
        raise HandshakeFailed(f"the daemon sent {type(message).__name__} where {kind.__name__} was due")
