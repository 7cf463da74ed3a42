# SPDX-License-Identifier: Apache-2.0
"""An engine made of bare messages, for what is done at the daemon's socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from hostflag import geometry as geometries
from hostflag import messages as m
from hostflag.channel import BadMessage, Channel, ChannelClosed, ChannelTimeout, engine_end
from hostflag.messages import FromDaemon, Geometry


PATIENCE_S: Final = 10.0
GEOMETRY: Final = Geometry(
    slots=4, max_requests=4, state_slots=8, row_bytes=1024, drafts=5, vocab=256, window=16, ring_bytes=1 << 20
)


def hello(name: str = "caller", **changes: Any) -> m.Hello:
    """Return a HELLO that is taken, but for what is changed."""
    fields: dict[str, Any] = {
        "protocol": m.PROTOCOL_VERSION, "layout_hash": geometries.layout_hash(), "geometry": GEOMETRY,
        "deadline_ms": 60_000.0, "model": "drill", "engine": m.EngineIdentity(name=name, pid=os.getpid()),
    }  # fmt: skip
    return m.Hello(**{**fields, **changes})


class Caller:
    """
    A context manager: one connection. ``region_fd``: the daemon's region, once it is there; -1 before.

    ``patience_s``: how long it waits for an answer.
    """

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        self.region_fd = -1
        self.session = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(PATIENCE_S)
        self._patience_s = patience_s
        self.channel: Channel[FromDaemon] = engine_end(self._socket)
        try:
            self._connect(path)
        except BaseException:
            self.channel.close()
            raise

    def _connect(self, path: Path) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._socket.connect(str(path))
            except BlockingIOError:  # the queue is full
                if time.monotonic() > until:
                    raise
                time.sleep(0.001)
            else:
                return

    def __enter__(self) -> Caller:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()
        if self.region_fd >= 0:
            os.close(self.region_fd)

    def send(self, payload: bytes, fds: Sequence[int] = ()) -> None:
        """Send a packet as it is. One that cannot be sent any more is none: the answer says why."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError, TimeoutError):
            socket.send_fds(self._socket, [payload], list(fds))

    def ask(self, message: m.Message, fds: Sequence[int] = ()) -> FromDaemon:
        """Send a message; return the next one that comes. Raises what the channel raises."""
        self.channel.send(message, fds)
        return self.receive()

    def receive(self) -> FromDaemon:
        """Return the next message; a region that comes along is kept."""
        received = self.channel.receive(self._patience_s)
        if received.fds and self.region_fd < 0:
            self.region_fd = received.fds.pop()
        received.close_fds()
        return received.message

    def refusal(self) -> m.Refused | None:
        """Read to the end; return the last REFUSED. None: it was closed without one, or nothing came."""
        last: m.Refused | None = None
        with contextlib.suppress(ChannelClosed, ChannelTimeout, BadMessage):
            while True:
                message = self.receive()
                last = message if isinstance(message, m.Refused) else last
        return last

    def greet(self, name: str = "caller", **changes: Any) -> FromDaemon:
        """Say HELLO; return the answer."""
        answer = self.ask(hello(name, **changes))
        self.session = answer.session if isinstance(answer, m.Welcome) else ""
        return answer

    def ready(self, name: str = "caller", geometry: Geometry = GEOMETRY) -> FromDaemon:
        """Do the whole handshake with a new region; return READY, or what came instead."""
        answer = self.greet(name, geometry=geometry)
        if isinstance(answer, m.Welcome):
            answer = self.ask(m.Create())
        return self.receive() if isinstance(answer, m.Region) else answer

    @property
    def hung_up(self) -> bool:
        """Whether the daemon's end is gone."""
        poller = select.poll()
        poller.register(self.channel.fileno(), 0)
        return any(events & select.POLLHUP for _, events in poller.poll(0))
