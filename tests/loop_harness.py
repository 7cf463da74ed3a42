# SPDX-License-Identifier: Apache-2.0
"""The round loop alone: a fake engine that writes a region's words by hand, a fake worker on a ROUTER, and the loop between."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import socket
import time

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import zmq

from hostflag import region
from hostflag.control import Open, Opened, Refused, SessionGeometry
from hostflag.messages import EngineIdentity, Geometry
from hostflag.region import View, Word
from hostflag.verdicts import Verdict
from hostflag.wire import (
    PROTOCOL,
    Header,
    Kind,
    Reply,
    Round,
    Status,
    decode_header,
    decode_round,
    encode_control,
    encode_header,
    encode_reply,
)
from proxyd._daemon import lib as daemon
from proxyd.link import Link, Links, max_message_bytes
from proxyd.roundloop import EventKind, LinkState, LoopConfig, LoopEvent, RoundLoop


# What Python sees of the region comes from the shared module; the loop is in the daemon's.
from hostflag._hostflag import ffi, lib  # isort: skip


PATIENCE_S: Final = 20.0  # for what has no bound of its own: a loaded machine is slow
MS: Final = 1_000_000
S: Final = 1_000_000_000
SESSION: Final = 0x1122334455667788
GEOMETRY: Final = Geometry(
    slots=4, max_requests=4, state_slots=8, row_bytes=64, drafts=3, vocab=1000, window=16, ring_bytes=1 << 16
)
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_FUTEX_WAKE: Final = 1


def until(what: Callable[[], Any], why: str, patience_s: float = PATIENCE_S) -> Any:
    """Return what ``what`` returns once it is true."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if result := what():
            return result
        time.sleep(0.001)
    raise AssertionError(f"not within {patience_s:g} s: {why}")


@dataclass(frozen=True)
class Ask:
    """A request of a round. Its rows' bytes, tokens and positions are made from its slot and the round."""

    slot: int = 0
    generation: int = 1
    rows: int = 1
    rejected: int = 0
    draft: bool = True
    prefill: bool = False  # every row is valid, the anchor is the next prompt token
    anchor: int = 7


class FakeEngine:
    """An engine's writes into a region, one by one. ``base`` is the counter before the first round."""

    def __init__(self, geometry: Geometry = GEOMETRY, base: int = 0) -> None:
        self.geometry = geometry
        self.fd = region.create(geometry)
        if base:
            region.rebase(self.fd, base)
        self._map = mmap.mmap(self.fd, 0)
        self._bytes = ffi.from_buffer(self._map, require_writable=True)
        self.start: Any = ffi.cast("unsigned char *", self._bytes)
        self.layout = ffi.new("struct hf_layout *")
        shape = {name: getattr(geometry, name) for name in geometry.__struct_fields__}
        assert lib.hf_layout_of(ffi.new("struct hf_geometry *", shape), self.layout) == 0
        self.view = View(self.fd)
        self._libc = ctypes.CDLL(None, use_errno=True)

    def close(self) -> None:
        self.view.close()
        ffi.release(self._bytes)
        self._map.close()
        os.close(self.fd)

    # ---- words ----

    def set_word(self, number: int, value: int) -> None:
        """Store an engine word: 0 submitted, 1 gathered, 2 consumed, 3 lost."""
        ffi.cast("uint32_t *", self.start + self.layout.engine_words + number * lib.HF_LINE)[0] = value & 0xFFFF_FFFF

    def set_verdict(self, t: int, verdict: Verdict, owner: int | None = None) -> None:
        at = self.layout.shared_words + lib.HF_LINE * (1 + t % self.geometry.slots)
        round_number = t if owner is None else owner
        ffi.cast("uint64_t *", self.start + at)[0] = round_number << 32 | verdict

    def word(self, word: Word) -> int:
        return self.view.word(word)

    def verdict(self, t: int) -> Verdict:
        owner, verdict = self.view.verdict(t % self.geometry.slots)
        assert owner == t, f"the slot holds round {owner}, not {t}"
        return Verdict(verdict)

    def lose(self) -> None:
        self.set_word(3, 1)

    # ---- a round ----

    def slot_at(self, t: int) -> Any:
        return self.start + self.layout.slots + t % self.geometry.slots * self.layout.slot_stride

    def array(self, t: int, name: str, ctype: str) -> Any:
        return ffi.cast(f"{ctype} *", self.slot_at(t) + getattr(self.layout, name))

    def header(self, t: int) -> Any:
        return ffi.cast("struct hf_round *", self.slot_at(t))

    def requests(self, t: int) -> Any:
        return ffi.cast("struct hf_request *", self.slot_at(t) + ffi.sizeof("struct hf_round"))

    def fill(self, t: int, asks: Sequence[Ask], *, context_only: bool = False, ring_offset: int = 0) -> None:
        """Write slot and rows of round t, all but the words."""
        header, requests = self.header(t), self.requests(t)
        span = ffi.new("struct hf_ring_span *")
        n_rows = sum(ask.rows for ask in asks)
        lib.hf_ring_span_of(ffi.addressof(ffi.new("struct hf_header *", {"geometry": self._shape()}), "geometry"), n_rows, span)
        header.round, header.session, header.flags = t, SESSION, lib.HF_ROUND_CONTEXT_ONLY if context_only else 0
        header.n_requests, header.n_rows = len(asks), n_rows
        header.ring_offset, header.ring_bytes, header.submitted_ns = ring_offset, span.bytes, time.monotonic_ns()
        rows = self.start + self.layout.rows + ring_offset
        first = 0
        for index, ask in enumerate(asks):
            request = requests[index]
            request.request_slot, request.generation, request.batch_index = ask.slot, ask.generation, index
            request.first_row, request.rows = first, ask.rows
            request.flags = (lib.HF_REQUEST_DRAFT if ask.draft else 0) | (lib.HF_REQUEST_ALL_VALID if ask.prefill else 0)
            self.array(t, "num_sampled", "int32_t")[index] = 0 if ask.prefill else 1
            self.array(t, "num_rejected", "int32_t")[index] = ask.rejected
            self.array(t, "last_sampled", "int64_t")[ask.slot] = -1 if ask.prefill else ask.anchor
            self.array(t, "next_prefill", "int32_t")[ask.slot] = ask.anchor if ask.prefill else -1
            for row in range(ask.rows):
                at = first + row
                ffi.cast("int64_t *", rows + span.positions)[at] = position(t, ask, row)
                ffi.cast("int32_t *", rows + span.tokens)[at] = token(t, ask, row)
                ffi.memmove(rows + span.rows + at * self.geometry.row_bytes, row_bytes(self.geometry, t, ask, row), self.geometry.row_bytes)
            first += ask.rows
        self.set_verdict(t, Verdict.OPEN)

    def _shape(self) -> dict[str, int]:
        return {name: getattr(self.geometry, name) for name in self.geometry.__struct_fields__}

    def submit(self, t: int) -> None:
        """Publish round t and ring the doorbell."""
        self.set_word(0, t)
        word = int(ffi.cast("uintptr_t", self.start + self.layout.engine_words))
        self._libc.syscall(_FUTEX, ctypes.c_void_p(word), _FUTEX_WAKE, 1, None, None, 0)

    def gather(self, t: int) -> None:
        """Say that round t's rows are there, with the stream's time."""
        ffi.cast("uint64_t *", self.slot_at(t) + self.layout.gpu_header)[0] = time.monotonic_ns()
        self.set_word(1, t)

    def begin(self, t: int, *asks: Ask, context_only: bool = False) -> None:
        """Fill, gather and submit round t: one request with one row where none is given."""
        self.fill(t, asks or (Ask(),), context_only=context_only)
        self.gather(t)
        self.submit(t)

    def finish(self, t: int) -> Verdict:
        """Wait until round t is released and retired, consume it, return its verdict."""
        until(lambda: self.word(Word.RETIRED) == t, f"round {t} retired")
        assert self.word(Word.RELEASED) == t
        self.set_word(2, t)
        return self.verdict(t)

    def ids(self, t: int, n_requests: int = 1) -> list[int]:
        at = self.layout.replies + t % self.geometry.slots * self.layout.reply_stride + self.layout.reply_ids
        return list(ffi.cast("int64_t *", self.start + at)[0 : n_requests * self.geometry.drafts])

    def extra(self, t: int, n_requests: int = 1) -> bytes:
        at = self.layout.replies + t % self.geometry.slots * self.layout.reply_stride + self.layout.reply_extra
        return bytes(ffi.buffer(self.start + at, n_requests * self.geometry.extra_bytes))

    def timing(self, t: int) -> Any:
        at = self.layout.replies + t % self.geometry.slots * self.layout.reply_stride
        return ffi.cast("struct hf_timing *", self.start + at)


def position(t: int, ask: Ask, row: int) -> int:
    return (t % 1000) * 100 + ask.slot * 10 + row


def token(t: int, ask: Ask, row: int) -> int:
    return (t + ask.slot + row) % 1000


def row_bytes(geometry: Geometry, t: int, ask: Ask, row: int) -> bytes:
    return bytes([(t * 7 + ask.slot * 31 + row) % 256]) * geometry.row_bytes


class FakeWorker:
    """A worker whose every message is sent by the test."""

    def __init__(self, geometry: Geometry = GEOMETRY, endpoint: str = "tcp://127.0.0.1:*") -> None:
        self.geometry = SessionGeometry.of(geometry)
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.peer = b""

    def close(self) -> None:
        self._context.destroy(linger=0)

    def receive(self) -> tuple[Header, list[bytes]]:
        """Return the next message, whose sender ``send`` then answers."""
        self.peer, *parts = self.socket.recv_multipart()
        return decode_header(parts[0]), parts

    def expect(self, kind: Kind) -> Header:
        """Return the next message, which has to be of that kind. PINGs are answered on the way."""
        while True:
            header, _ = self.receive()
            if header.kind is Kind.PING and kind is not Kind.PING:
                self.send(encode_header(Kind.PONG, header.session, header.round))
                continue
            assert header.kind is kind, header
            return header

    def expect_round(self) -> Round:
        while True:
            header, parts = self.receive()
            if header.kind is Kind.ROUND:
                return decode_round(header, parts, self.geometry)
            assert header.kind is Kind.PING, header
            self.send(encode_header(Kind.PONG, header.session, header.round))

    def send(self, *parts: bytes | memoryview) -> None:
        self.socket.send_multipart([self.peer, *parts])

    def open(self) -> None:
        """Answer the OPEN that must come next."""
        header = self.expect(Kind.OPEN)
        self.send(encode_control(header.session, Opened(worker="fake", drafter="none")))

    def refuse(self, code: str = "model") -> None:
        self.send(encode_control(SESSION, Refused(code=code, reason="a test")))

    def answer(self, message: Round, ids: Sequence[int] | None = None, **changes: Any) -> None:
        self.send(*reply_to(message, self.geometry, ids, **changes))


def reply_to(
    message: Round, geometry: SessionGeometry, ids: Sequence[int] | None = None, *, session: int = SESSION, number: int | None = None
) -> list[bytes]:
    n_requests = len(message.requests)
    values = list(range(n_requests * geometry.drafts)) if ids is None else list(ids)
    raw = b"".join(value.to_bytes(8, "little", signed=True) for value in values)
    extra = bytes(n_requests * geometry.extra_bytes)
    body = ffi.new("struct hw_reply *", {"n_requests": n_requests, "drafts": geometry.drafts, "extra_bytes": geometry.extra_bytes})
    whole = bytes(ffi.buffer(body)) + raw + extra
    return [encode_header(Kind.REPLY, session, message.round if number is None else number, len(whole)) + whole]


def status_reply(number: int, status: Status, session: int = SESSION) -> bytes:
    body = bytes(ffi.buffer(ffi.new("struct hw_reply *", {"status": status})))
    return encode_header(Kind.REPLY, session, number, len(body)) + body


@dataclass
class Running:
    """A loop with its engine and what it said. ``peer`` is the engine's end of the session's socket."""

    engine: FakeEngine
    loop: RoundLoop
    links: Links | None
    peer: socket.socket
    given: dict[int, Link] = field(default_factory=dict)
    events: list[LoopEvent] = field(default_factory=list)
    stopped: bool = False

    def give(self) -> Link:
        """Give the loop a link."""
        assert self.links is not None
        link = self.links.make(max_message_bytes(self.engine.geometry))
        link.give(self.loop, opening(self.engine.geometry))
        self.given[link.tag] = link
        return link

    def hear(self) -> None:
        """Take the loop's events; close what it returned."""
        for event in self.loop.events():
            self.events.append(event)
            if event.kind is EventKind.LINK_RETURNED:
                self.given.pop(event.tag).close()
            self.stopped |= event.kind is EventKind.STOPPED

    def heard(self, kind: EventKind) -> list[LoopEvent]:
        self.hear()
        return [event for event in self.events if event.kind is kind]

    def wait_for(self, kind: EventKind, count: int = 1) -> LoopEvent:
        until(lambda: len(self.heard(kind)) >= count, f"{kind.name} in {self.events}")
        return self.heard(kind)[count - 1]

    def wait_link(self, state: LinkState) -> None:
        until(lambda: self.loop.link_state() is state, f"the link is {state.name}, it is {self.loop.link_state().name}")

    def up(self, worker: FakeWorker) -> None:
        """Give a link and open it."""
        ups = len(self.heard(EventKind.LINK_UP))
        self.give()
        worker.open()
        self.wait_for(EventKind.LINK_UP, ups + 1)

    def counter(self, name: str) -> int:
        return int(getattr(self.loop.counters(), name))

    def rounds(self, verdict: Verdict) -> int:
        return int(self.loop.counters().rounds[verdict])

    def dropped(self, why: str) -> int:
        return int(self.loop.counters().dropped[getattr(daemon, f"HFD_DROP_{why}")])

    def stop(self) -> float:
        """Stop, join, close everything. Returns how long stop and join took, in seconds."""
        start = time.monotonic()
        if not self.stopped:
            self.loop.stop(closing())
        until(lambda: self.heard(EventKind.STOPPED), "STOPPED")
        assert self.loop.join(PATIENCE_S)
        took = time.monotonic() - start
        assert self.given == {}, "a link was not returned"
        return took


def opening(geometry: Geometry = GEOMETRY) -> bytes:
    message = Open(
        protocol=PROTOCOL, engine=EngineIdentity(name="engine"), model="test", geometry=SessionGeometry.of(geometry)
    )
    return encode_control(SESSION, message)


def closing() -> bytes:
    from hostflag.control import Close

    return encode_control(SESSION, Close(reason="the test is over"))


def config(**changes: Any) -> LoopConfig:
    defaults: dict[str, Any] = {
        "session": SESSION,
        "base": 0,
        "network_timeout_ns": 10 * S,  # a loaded machine must not make a test fail
        "spin_ns": 20_000,
        "nap_ns": 20_000,
        "ping_ns": 0,
        "ping_limit_ns": 10 * S,
        "open_limit_ns": 30 * S,
        "reopen_ns": 0,
    }
    return LoopConfig(**{**defaults, **changes})


@contextlib.contextmanager
def running(worker: FakeWorker | str | None = None, *, geometry: Geometry = GEOMETRY, **changes: Any) -> Iterator[Running]:
    """Run a loop over a new region. ``worker``: whom links lead to. The loop is stopped at the end, unless it stopped before."""
    settings = config(**changes)
    endpoint = worker.endpoint if isinstance(worker, FakeWorker) else worker
    with contextlib.ExitStack() as stack:
        engine = FakeEngine(geometry, settings.base)
        stack.callback(engine.close)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stack.callback(ours.close)
        stack.callback(theirs.close)
        links = Links(endpoint) if endpoint else None
        if links:
            stack.callback(links.close)
        run = Running(engine, RoundLoop(engine.fd, theirs.fileno(), settings), links, ours)
        theirs.close()  # the loop has its own
        stack.callback(lambda: run.stopped and run.loop._loop is None or run.stop())
        yield run


@contextlib.contextmanager
def fake_worker(geometry: Geometry = GEOMETRY, endpoint: str = "tcp://127.0.0.1:*") -> Iterator[FakeWorker]:
    worker = FakeWorker(geometry, endpoint)
    try:
        yield worker
    finally:
        worker.close()
