# SPDX-License-Identifier: Apache-2.0
"""What stands around an engine session in tests: a daemon that does only what it is told, and device memory."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import zlib

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine_native import native

from engine_shim import Batch, Session, SessionOptions, SoftStream, connect
from hostflag import messages as m
from hostflag import region as regions
from hostflag.channel import Channel, ChannelClosed, daemon_end
from hostflag.messages import EngineIdentity, FromEngine, Geometry
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict


PATIENCE_S: Final = 30.0  # for what has no bound of its own; a loaded machine is slow
SMALL: Final = Geometry(
    slots=8, max_requests=4, state_slots=8, row_bytes=96, window=16, drafts=3, vocab=1000, ring_bytes=1 << 16
)
LARGE: Final = Geometry(row_bytes=30_720, window=128, drafts=5, vocab=129_280)
Key = tuple[int, int]  # request slot, generation


def until(what: Callable[[], Any], why: str, patience_s: float = PATIENCE_S) -> Any:
    """Return what ``what`` returns once it is true."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if result := what():
            return result
        time.sleep(0.001)
    raise AssertionError(f"not within {patience_s:g} s: {why}")


@dataclass(frozen=True)
class Shipment:
    """One request of a round as it lies in the ring. ``rows``: [rows][row_bytes]."""

    slot: int
    generation: int
    batch_index: int
    flags: int
    positions: list[int]
    tokens: list[int]
    rows: npt.NDArray[np.uint8]


class Hand:
    """A daemon's hand on the words: it maps what a daemon maps, and moves when the test says so."""

    def __init__(self, fd: int) -> None:
        self._module = native()
        self._lib: Any = self._module.lib
        self.region: Any = self._lib.hft_map(fd)
        assert self.region, "the region cannot be mapped"
        self.geometry = regions.check(fd).geometry

    def close(self) -> None:
        if self.region:
            self._lib.hft_unmap(self.region)
            self.region = None

    def word(self, word: Word) -> int:
        return int(self._lib.hft_word(self.region, word))

    def phase(self, phase: Phase) -> None:
        self._lib.hft_phase(self.region, phase)

    def beat(self) -> None:
        self._lib.hft_beat(self.region)

    def see(self, t: int) -> None:
        """Wait until round t is submitted and gathered."""

        def there() -> bool:
            return all(past(self.word(word), t) >= 0 for word in (Word.SUBMITTED, Word.GATHERED))

        until(there, f"round {t} gathered")

    def reply(self, t: int, ids: Sequence[int]) -> None:
        self._lib.hft_reply(self.region, t, list(ids), len(ids), time.monotonic_ns())

    def decide(self, t: int, verdict: Verdict) -> bool:
        return bool(self._lib.hf_decide(self.region, t, verdict))

    def release(self, t: int) -> None:
        self._lib.hf_release(self.region, t)

    def retire(self, t: int) -> None:
        self._lib.hft_retire(self.region, t)

    def finish(self, t: int, verdict: Verdict = Verdict.OK, ids: Sequence[int] = ()) -> None:
        """Do a whole round: see it, reply, decide, release, retire."""
        self.see(t)
        if ids:
            self.reply(t, ids)
        self.decide(t, verdict)
        self.release(t)
        self.retire(t)

    def context_only(self, t: int) -> bool:
        return bool(self._lib.hft_round(self.region, t).flags & self._lib.HF_ROUND_CONTEXT_ONLY)

    def array(self, t: int, name: str, dtype: type[np.generic], count: int) -> list[int]:
        """Return an array of a slot's GPU header."""
        at = int(getattr(self.region.layout, name))
        data = self._module.ffi.buffer(self._lib.hft_slot(self.region, t) + at, count * np.dtype(dtype).itemsize)
        return [int(value) for value in np.frombuffer(bytes(data), dtype)]

    def shipped(self, t: int) -> list[Shipment]:
        """Return copies of everything round t has in the ring."""
        header = self._lib.hft_round(self.region, t)
        table = self._lib.hft_requests(self.region, t)
        assert header.round == t
        span = self._module.ffi.new("struct hf_ring_span *")
        self._lib.hf_ring_span_of(self._module.ffi.addressof(self.region.geometry), header.n_rows, span)
        base = self.region.base + self.region.layout.rows + header.ring_offset
        n, width = int(header.n_rows), self.geometry.row_bytes
        positions = np.frombuffer(bytes(self._module.ffi.buffer(base + span.positions, n * 8)), np.int64)
        tokens = np.frombuffer(bytes(self._module.ffi.buffer(base + span.tokens, n * 4)), np.int32)
        rows = np.frombuffer(bytes(self._module.ffi.buffer(base + span.rows, n * width)), np.uint8).reshape(n, width)
        shipments, at = [], 0
        for one in table[0 : header.n_requests]:
            assert one.first_row == at
            here = slice(at, at + one.rows)
            shipments.append(
                Shipment(one.request_slot, one.generation, one.batch_index, one.flags,
                         positions[here].tolist(), tokens[here].tolist(), rows[here])
            )  # fmt: skip
            at += one.rows
        assert at == n
        return shipments


def past(a: int, b: int) -> int:
    """How far a is past b; cyclic."""
    return ((a - b + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000


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


@dataclass(frozen=True)
class Ask:
    """One request of a step. ``gap``: rows of nobody before its rows in the batch, so that its copies stand alone."""

    slot: int
    rows: int
    first: int = 0
    generation: int = 1
    draft: bool = True
    prefill: bool = False
    to_come: int = 0
    rejected: int = 0
    gap: int = 0


@dataclass
class Device:
    """Device memory of a stand-in engine: rows are a fixed function of key and position."""

    geometry: Geometry
    sources: int = 3
    kept: list[Any] = field(default_factory=list)

    def row(self, slot: int, generation: int, position: int) -> npt.NDArray[np.uint8]:
        """Return the row of a position, [row_bytes]."""
        seed = zlib.crc32(f"{slot}/{generation}/{position}".encode())
        return np.random.default_rng(seed).integers(0, 256, self.geometry.row_bytes, np.uint8)

    @staticmethod
    def token(slot: int, position: int) -> int:
        return (slot * 1009 + position * 7) % 1000

    def fill(self, batch: Batch, asks: Sequence[Ask], *, drafts: bool = True) -> npt.NDArray[np.int64]:
        """Fill a batch, in arrays of its own. Return drafts_out, [requests][drafts], all -1."""
        g = self.geometry
        total = sum(ask.gap + ask.rows for ask in asks)
        rows = np.zeros((max(total, 1), g.row_bytes), np.uint8)
        positions = np.full(max(total, 1), -1, np.int64)
        tokens = np.full(max(total, 1), -1, np.int32)
        at = 0
        for index, ask in enumerate(asks):
            at += ask.gap
            batch.set_request(
                index, slot=ask.slot, generation=ask.generation, first_row=at, rows=ask.rows,
                draft=ask.draft, prefill=ask.prefill, to_come=ask.to_come,
            )  # fmt: skip
            for offset in range(ask.rows):
                rows[at + offset] = self.row(ask.slot, ask.generation, ask.first + offset)
                positions[at + offset] = ask.first + offset
                tokens[at + offset] = self.token(ask.slot, ask.first + offset)
            at += ask.rows
        batch.n_requests = len(asks)
        sampled = np.array([0 if ask.prefill else ask.rows - ask.rejected for ask in asks] or [0], np.int32)
        rejected = np.array([ask.rejected for ask in asks] or [0], np.int32)
        last = np.arange(100, 100 + g.state_slots, dtype=np.int64)
        following = np.arange(200, 200 + g.state_slots, dtype=np.int32)
        out = np.full((max(len(asks), 1), g.drafts), -1, np.int64)
        width = g.row_bytes // self.sources
        # Sources with a pitch of their own, as views of larger tensors have.
        columns = [np.pad(rows[:, i * width : (i + 1) * width], ((0, 0), (0, 8 * i))) for i in range(self.sources)]
        batch.set_sources([(column.ctypes.data, column.strides[0], width) for column in columns])
        batch.set_arrays(
            positions=positions.ctypes.data, tokens=tokens.ctypes.data, num_sampled=sampled.ctypes.data,
            num_rejected=rejected.ctypes.data, last_sampled=last.ctypes.data, next_prefill=following.ctypes.data,
            drafts_out=out.ctypes.data if drafts else 0,
        )  # fmt: skip
        self.kept.append((rows, positions, tokens, sampled, rejected, last, following, out, columns))
        return out

    def check(self, shipment: Shipment) -> None:
        """Assert that every row of a shipment is the one that was meant, bit for bit."""
        for position, token, row in zip(shipment.positions, shipment.tokens, shipment.rows, strict=True):
            assert token == self.token(shipment.slot, position)
            assert np.array_equal(row, self.row(shipment.slot, shipment.generation, position)), (
                shipment.slot,
                position,
            )


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
