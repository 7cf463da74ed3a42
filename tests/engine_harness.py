# SPDX-License-Identifier: Apache-2.0
"""What stands around an engine session in tests: a daemon that does only what it is told; here its socket."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from engine_device import Ask, Device
from engine_hand import PATIENCE_S, Hand, Shipment, past, until

from engine_shim import Session, SessionOptions, SoftStream, connect
from hostflag import messages as m
from hostflag import region as regions
from hostflag.channel import Channel, ChannelClosed, daemon_end
from hostflag.messages import EngineIdentity, FromEngine, Geometry
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict


SMALL: Final = Geometry(
    slots=8, max_requests=4, state_slots=8, row_bytes=96, window=16, drafts=3, vocab=1000, ring_bytes=1 << 16
)
LARGE: Final = Geometry(row_bytes=30_720, window=128, drafts=5, vocab=129_280)


__all__ = [
    "LARGE",
    "PATIENCE_S",
    "SMALL",
    "Ask",
    "Device",
    "FakeDaemon",
    "Hand",
    "Shipment",
    "drained",
    "engine",
    "past",
    "until",
]


class FakeDaemon:
    """Listens, shakes hands as a daemon does, and leaves the words to the test (``hand``)."""

    def __init__(self, directory: Path, network_timeout_ms: float = 150.0) -> None:
        self.path = directory / "e.sock"
        self.network_timeout_ms = network_timeout_ms
        self._hand: Hand | None = None
        self.farewell: list[str] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen(4)
        self._channel: Channel[FromEngine] | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> FakeDaemon:
        self.start(self._serve)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self.hang_up()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._listener.close()
        if self._hand is not None:
            self._hand.close()

    @property
    def hand(self) -> Hand:
        """The hand on the words; there once an engine is."""
        assert self._hand is not None
        return self._hand

    def start(self, run: Callable[[], None]) -> None:
        """Run something until the end of the test."""
        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()

    def hang_up(self) -> None:
        """Close the engine's socket, as the kernel does for a daemon that died."""
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.socket.shutdown(socket.SHUT_RDWR)  # wakes our own reader; the engine sees POLLHUP
            self._channel.close()

    def beat(self) -> None:
        """Beat until the end of the test."""

        def beating() -> None:
            while not self._stop.wait(0.02):
                self.hand.beat()

        self.start(beating)

    def finish_all(self, each: Callable[[Hand, int], Sequence[int]], base: int = 0) -> None:
        """Do every round from now on until the end of the test. ``each`` looks at it and returns the ids of its reply."""

        def work() -> None:
            t = base
            while not self._stop.is_set():
                following = (t + 1) & 0xFFFF_FFFF
                words = (self.hand.word(Word.GATHERED), self.hand.word(Word.SUBMITTED))
                if min(past(word, following) for word in words) < 0:
                    time.sleep(0.0002)
                    continue
                t = following
                self.hand.finish(t, Verdict.OK, each(self.hand, t))

        self.start(work)

    def _serve(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._channel = daemon_end(sock)
        try:
            self._shake_hands(self._channel)
            while True:
                self.farewell.append(type(self._channel.receive(None).message).__name__)
        except (ChannelClosed, OSError, ValueError):
            self._channel.close()

    def _shake_hands(self, channel: Channel[FromEngine]) -> None:
        hello = channel.receive(PATIENCE_S).message
        assert isinstance(hello, m.Hello)
        channel.send(
            m.Welcome(
                session=f"{0xABC:016x}", pid=os.getpid(), version="test", network_timeout_ms=self.network_timeout_ms
            )
        )
        wanted = channel.receive(PATIENCE_S)
        base = 0
        if isinstance(wanted.message, m.Attach):
            fd, base = wanted.fds.pop(), wanted.message.base
        else:
            fd = regions.create(hello.geometry)
        self._hand = Hand(fd)
        self.hand.retire(base)
        self.hand.phase(Phase.RUNNING)
        if isinstance(wanted.message, m.Create):
            channel.send(m.Region(bytes=regions.check(fd).bytes), [fd])
        os.close(fd)
        channel.send(m.Ready(locked=True))


@contextlib.contextmanager
def engine(
    daemon: FakeDaemon, geometry: Geometry = SMALL, *, deadline_ms: float = 10_000.0, **options: Any
) -> Iterator[tuple[Session, SoftStream, Device]]:
    """Give a session with that daemon on a stream of its own; closed at the end, whatever happened."""
    with SoftStream() as stream:
        session = connect(
            daemon.path,
            geometry=geometry,
            model="test",
            engine=EngineIdentity(name="test", pid=os.getpid()),
            stream=stream,
            deadline_ms=deadline_ms,
            timeout_s=PATIENCE_S,
            options=SessionOptions(**options),
        )
        try:
            yield session, stream, Device(geometry)
        finally:
            if not session.closed:
                session.give_up()  # a test that failed half-way leaves no round parked
            session.close()


def drained(stream: SoftStream, why: str = "the stream is past everything") -> None:
    assert stream.wait(stream.marker(), PATIENCE_S), why
