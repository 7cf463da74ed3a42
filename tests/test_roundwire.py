# SPDX-License-Identifier: Apache-2.0
"""What the round loop does with hostile input: replies that do not fit, messages that make no sense, headers no engine writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fake_engine import GEOMETRY, SESSION, Ask, FakeEngine, until
from fake_worker import FakeWorker, fake_worker, reply_to, status_reply
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_harness import MS, Running, running

from hostflag._hostflag import ffi, lib
from hostflag.messages import Geometry
from hostflag.region import Word
from hostflag.verdicts import Verdict
from hostflag.wire import Kind, Round, Status, encode_header
from proxyd.sessions.roundloop import EventKind, LinkState


TWO = (Ask(rows=2), Ask(slot=3, rows=1))


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with fake_worker() as one:
        yield one


@pytest.fixture
def loop(worker: FakeWorker) -> Iterator[Running]:
    with running(worker, reopen_ns=1 * MS) as run:
        run.up(worker)
        yield run


def good_round(loop: Running, worker: FakeWorker, t: int) -> None:
    loop.engine.begin(t)
    worker.answer(worker.expect_round(), [5, 6, 7])
    assert loop.engine.finish(t) is Verdict.OK
    assert loop.engine.ids(t) == [5, 6, 7]


def ok(message: Round, worker: FakeWorker, **changes: Any) -> bytes:
    return reply_to(message, worker.geometry, **changes)


BAD_REPLIES: dict[str, Callable[[Round, FakeWorker], bytes]] = {
    "an id that is the vocabulary's size": lambda m, w: ok(m, w, ids=[0, 1, 2, 3, 4, 1000]),
    "a negative id": lambda m, w: ok(m, w, ids=[-1, 1, 2, 3, 4, 5]),
    "an id that is legal in its lower half": lambda m, w: ok(m, w, ids=[1 << 32, 1, 2, 3, 4, 5]),
    "a request too few": lambda m, w: ok(m, w, ids=[0, 1, 2], n_requests=1),
    "a request too many": lambda m, w: ok(m, w, ids=range(9), n_requests=3),
    "no requests": lambda m, w: ok(m, w, ids=[], n_requests=0),
    "other counts of the same size": lambda m, w: ok(m, w, n_requests=3, drafts=2),
    "counts that wrap around": lambda m, w: ok(m, w, n_requests=0x8000_0001, drafts=3),
    "too few drafts": lambda m, w: ok(m, w, ids=[0, 1, 2, 3], drafts=2),
    "extra bytes that nobody asked for": lambda m, w: ok(m, w, extra=b"12", extra_bytes=1),
    "extra bytes unannounced": lambda m, w: ok(m, w, extra=b"x"),
    "an id too few": lambda m, w: ok(m, w, ids=[0, 1, 2, 3, 4]),
    "an id too many": lambda m, w: ok(m, w, ids=range(7)),
    "no body": lambda m, _: encode_header(Kind.REPLY, SESSION, m.round, 0),
    "half a body": lambda m, _: encode_header(Kind.REPLY, SESSION, m.round, 8) + bytes(8),
    "a status that is none": lambda m, w: ok(m, w, ids=[], n_requests=0, drafts=0, status=lib.HW_STATUS_MAX),
    "a status of 2^32 - 1": lambda m, w: ok(m, w, ids=[], n_requests=0, drafts=0, status=0xFFFF_FFFF),
    "a refusal with ids": lambda m, w: ok(m, w, status=Status.BUSY),
    "a refusal with counts": lambda m, w: ok(m, w, ids=[], status=Status.BUSY),
    "a refusal with a tail": lambda m, _: (
        encode_header(Kind.REPLY, SESSION, m.round, 17) + status_reply(1, Status.BUSY)[-16:] + b"x"
    ),
    "64 KiB": lambda m, w: ok(m, w, ids=range(8192 - 5)),
}


@pytest.mark.parametrize("bad", BAD_REPLIES.values(), ids=BAD_REPLIES)
def test_a_reply_that_does_not_fit_is_never_used(
    loop: Running, worker: FakeWorker, bad: Callable[[Round, FakeWorker], bytes]
) -> None:
    loop.engine.begin(1, *TWO)
    worker.send(bad(worker.expect_round(), worker))
    assert loop.engine.finish(1) is Verdict.BAD_REPLY
    assert loop.engine.ids(1, 2) == [0] * 6, "nothing of it was stored"
    good_round(loop, worker, 2)
    assert (loop.counter("bad_replies"), loop.counter("link_downs")) == (1, 0)


def test_a_reply_of_two_parts_is_never_used(loop: Running, worker: FakeWorker) -> None:
    loop.engine.begin(1)
    worker.send(reply_to(worker.expect_round(), worker.geometry), b"more")
    assert loop.engine.finish(1) is Verdict.BAD_REPLY
    good_round(loop, worker, 2)
    assert loop.counter("extra_parts") == 1


SENSELESS: dict[str, tuple[str, Callable[[Round, FakeWorker], bytes]]] = {
    "another session's reply": ("SESSION", lambda m, w: ok(m, w, session=SESSION ^ 1)),
    "the round before": ("STALE", lambda m, w: ok(m, w, number=0)),
    "the round after": ("STALE", lambda m, w: ok(m, w, number=2)),
    "the same slot, S rounds later": ("STALE", lambda m, w: ok(m, w, number=1 + GEOMETRY.slots)),
    "an empty message": ("MALFORMED", lambda *_: b""),
    "half a header": ("MALFORMED", lambda m, w: ok(m, w)[:12]),
    "another magic": ("MALFORMED", lambda m, w: bytes(4) + ok(m, w)[4:]),
    "another version": ("MALFORMED", lambda m, w: ok(m, w)[:4] + b"\xff\x00" + ok(m, w)[6:]),
    "a truncated reply": ("MALFORMED", lambda m, w: ok(m, w)[:-1]),
    "a reply with a tail": ("MALFORMED", lambda m, w: ok(m, w) + b"x"),
    "a type that is none": ("TYPE", lambda *_: raw_header(99)),
    "type 0": ("TYPE", lambda *_: raw_header(0)),
    "a round": ("TYPE", lambda *_: encode_header(Kind.ROUND, SESSION, 1, 0)),
    "an OPEN": ("TYPE", lambda *_: encode_header(Kind.OPEN, SESSION, 0, 0)),
    "OPENED, again": ("TYPE", lambda *_: encode_header(Kind.OPENED, SESSION, 0, 2) + b"{}"),
    "a PONG that nobody asked for": ("TYPE", lambda *_: encode_header(Kind.PONG, SESSION, 0, 0)),
}


def raw_header(kind: int) -> bytes:
    fields = {"magic": lib.HW_MAGIC, "version": lib.HW_VERSION, "type": kind, "session": SESSION, "round": 1}
    return bytes(ffi.buffer(ffi.new("struct hw_header *", fields)))


@pytest.mark.parametrize(("why", "message"), SENSELESS.values(), ids=SENSELESS)
def test_what_makes_no_sense_is_dropped_counted_and_harmless(
    loop: Running, worker: FakeWorker, why: str, message: Callable[[Round, FakeWorker], bytes]
) -> None:
    loop.engine.begin(1, *TWO)
    sent = worker.expect_round()
    worker.send(message(sent, worker))
    worker.answer(sent, [1, 2, 3, 4, 5, 6])
    assert loop.engine.finish(1) is Verdict.OK
    assert loop.engine.ids(1, 2) == [1, 2, 3, 4, 5, 6]
    assert loop.dropped(why) == 1


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, 87), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.just(88) | st.integers(0, 88),
    more=st.lists(st.binary(max_size=8), max_size=2),
)
def test_mutated_replies_never_bring_an_illegal_id(
    loop: Running, worker: FakeWorker, flips: list[tuple[int, int]], cut: int, more: list[bytes]
) -> None:
    """Whatever a worker sends: the round ends, and every id in the reply area is legal."""
    t = loop.engine.word(Word.RETIRED) + 1
    loop.engine.begin(t, *TWO)
    message = worker.expect_round()
    mutated = bytearray(ok(message, worker))
    assert len(mutated) == 88
    for at, value in flips:
        mutated[at] = value
    worker.send(bytes(mutated[:cut]), *more)
    worker.answer(message)
    assert loop.engine.finish(t) in {Verdict.OK, Verdict.BAD_REPLY, Verdict.REFUSED}
    assert all(0 <= one < GEOMETRY.vocab for one in loop.engine.ids(t, 2))
    if loop.loop.link_state() is LinkState.REFUSED:  # the mutation made it a REFUSED
        loop.wait_link(LinkState.OPENING)
    if loop.loop.link_state() is LinkState.OPENING:  # or an UNKNOWN_SESSION
        worker.open()
        loop.wait_link(LinkState.UP)


def set_header(**fields: int) -> Callable[[FakeEngine], None]:
    def change(engine: FakeEngine) -> None:
        for name, value in fields.items():
            setattr(engine.header(1), name, value)

    return change


def set_request(index: int, **fields: int) -> Callable[[FakeEngine], None]:
    def change(engine: FakeEngine) -> None:
        for name, value in fields.items():
            setattr(engine.requests(1)[index], name, value)

    return change


FAULTS: dict[str, Callable[[FakeEngine], None]] = {
    "another round": set_header(round=2),
    "another session": set_header(session=SESSION + 1),
    "unknown flags": set_header(flags=0x8000_0001),
    "no requests, but rows": set_header(n_requests=0),
    "no requests and no drafts": set_header(n_requests=0, n_rows=0, flags=1),
    "more requests than max_requests": set_header(n_requests=5),
    "2^32 - 1 requests": set_header(n_requests=0xFFFF_FFFF),
    "more rows than its piece of the ring": set_header(n_rows=400),
    "2^32 - 1 rows": set_header(n_rows=0xFFFF_FFFF),
    "a ring offset behind the ring": set_header(ring_offset=1 << 16),
    "a ring offset that wraps around": set_header(ring_offset=(1 << 64) - 64),
    "a piece longer than the ring": set_header(ring_bytes=(1 << 16) + 1),
    "a piece that ends behind the ring": set_header(ring_offset=(1 << 16) - 128),
    "a request slot too high": set_request(1, request_slot=8),
    "a batch index too high": set_request(1, batch_index=4),
    "a batch index of 2^32 - 1": set_request(0, batch_index=0xFFFF_FFFF),
    "unknown request flags": set_request(0, flags=0x10),
    "rows behind the round's": set_request(1, rows=2),
    "rows that wrap around": set_request(1, first_row=2, rows=0xFFFF_FFFF),
    "rows that overlap": set_request(1, first_row=1),
    "a verdict word of another round": lambda engine: engine.set_verdict(1, Verdict.OPEN, owner=5),
    "a verdict that is none": lambda engine: engine.set_verdict(1, 77),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_header_that_no_engine_writes_ends_the_session(
    loop: Running, worker: FakeWorker, fault: Callable[[FakeEngine], None]
) -> None:
    loop.loop.drain()  # so that those that show only at the verdict get there without a worker
    until(lambda: loop.engine.word(Word.PHASE), "phase")
    loop.engine.fill(1, TWO)
    fault(loop.engine)
    before = loop.engine.view.verdict(1)
    loop.engine.gather(1)
    loop.engine.submit(1)
    assert loop.last() == ["FAULT", "LINK_RETURNED", "STOPPED"]
    assert loop.heard(EventKind.FAULT)[0].reason
    assert loop.engine.view.verdict(1) == before
    assert (loop.engine.word(Word.RELEASED), loop.engine.word(Word.RETIRED)) == (0, 0)
    assert loop.hung_up(), "the engine learns of it by its socket"


@pytest.mark.parametrize("submitted", [5, 0xFFFF_FFFF, 0x8000_0000])
def test_a_submitted_that_runs_wild_ends_the_session(loop: Running, submitted: int) -> None:
    loop.engine.submit(submitted)
    assert loop.last() == ["FAULT", "LINK_RETURNED", "STOPPED"]


BAD_GATHERS: dict[str, tuple[str, str, int, int]] = {  # array, its type, index, value
    "num_rejected below 0": ("num_rejected", "int32_t", 0, -1),
    "num_rejected above rows": ("num_rejected", "int32_t", 1, 2),
    "num_rejected of 2^31 - 1": ("num_rejected", "int32_t", 0, 0x7FFF_FFFF),
    "an anchor below 0": ("last_sampled", "int64_t", 0, -1),
    "an anchor that is the vocabulary's size": ("last_sampled", "int64_t", 3, 1000),
    "an anchor that is legal in its lower half": ("last_sampled", "int64_t", 3, 1 << 32),
    "no sample and no prompt token": ("num_sampled", "int32_t", 0, 0),
}


@pytest.mark.parametrize("wrong", BAD_GATHERS.values(), ids=BAD_GATHERS)
def test_what_the_gpu_wrote_wrong_costs_that_round(
    loop: Running, worker: FakeWorker, wrong: tuple[str, str, int, int]
) -> None:
    array, ctype, index, value = wrong
    for t in (1, 2):
        loop.engine.fill(t, TWO)
        loop.engine.array(t, array, ctype)[index] = value
        loop.engine.gather(t)
        loop.engine.submit(t)
        assert loop.engine.finish(t) is Verdict.SEND_ERROR
    good_round(loop, worker, 3)
    assert loop.counter("bad_gathers") == 2
    assert len(loop.heard(EventKind.BAD_GATHER)) == 1, "said once, counted each time"


def test_a_round_larger_than_a_worker_takes_is_not_sent() -> None:
    geometry = Geometry(
        slots=4, max_requests=4, state_slots=8, row_bytes=1 << 20, drafts=3, vocab=1000, ring_bytes=80 << 20
    )
    with fake_worker(geometry) as worker, running(worker, geometry=geometry) as loop:
        loop.up(worker)
        loop.engine.begin(1, Ask(rows=65, prefill=True), context_only=True)
        assert loop.engine.finish(1) is Verdict.SEND_ERROR
        loop.engine.begin(2, Ask(rows=64, prefill=True))
        message = worker.expect_round()
        assert len(message.rows) == lib.HW_MAX_PART_BYTES
        worker.answer(message)
        assert loop.engine.finish(2) is Verdict.OK
