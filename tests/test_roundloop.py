# SPDX-License-Identifier: Apache-2.0
"""Rounds through the round loop: what goes out, what comes back, how each ends, and in which order."""

from __future__ import annotations

import time

from collections.abc import Iterator

import pytest

from fake_engine import GEOMETRY, SESSION, Ask, FakeEngine, position, row_bytes, token, until
from fake_worker import FakeWorker, fake_worker, status_reply
from loop_harness import MS, Running, running

from hostflag.messages import Geometry
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict
from hostflag.wire import Kind, Round, Status
from proxyd.sessions.roundloop import EventKind, LinkState


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with fake_worker() as one:
        yield one


@pytest.fixture
def loop(worker: FakeWorker) -> Iterator[Running]:
    """Give a loop whose link is up."""
    with running(worker) as run:
        run.up(worker)
        yield run


def sent(t: int, *asks: Ask) -> tuple[list[int], list[int], bytes]:
    """Return positions, tokens and rows that a worker must get: the valid ones, in request order."""
    valid = [(ask, row) for ask in asks for row in range(ask.rows - (0 if ask.prefill else ask.rejected))]
    rows = b"".join(row_bytes(GEOMETRY, t, ask, row) for ask, row in valid)
    return [position(t, *one) for one in valid], [token(t, *one) for one in valid], rows


def got(message: Round) -> tuple[list[int], list[int], bytes]:
    return list(message.positions), list(message.tokens), bytes(message.rows)


def good_round(loop: Running, worker: FakeWorker, t: int) -> None:
    loop.engine.begin(t)
    worker.answer(worker.expect_round(), [t % 1000] * 3)
    assert loop.engine.finish(t) is Verdict.OK
    assert loop.engine.ids(t) == [t % 1000] * 3


@pytest.mark.parametrize(
    "asks",
    [
        [Ask()],
        [Ask(rows=0)],
        [Ask(rows=4, rejected=3), Ask(slot=5, rows=2), Ask(slot=2, rows=6, rejected=6, draft=False)],
        [
            Ask(slot=1, rows=3, rejected=1),
            Ask(slot=0, rows=3, rejected=1),
            Ask(slot=7, rows=16, prefill=True, anchor=999),
        ],
        [Ask(slot=slot, generation=slot + 40, rows=slot) for slot in range(4)],
    ],
)
def test_a_round_carries_the_valid_rows_and_brings_the_ids_back(
    loop: Running, worker: FakeWorker, asks: list[Ask]
) -> None:
    loop.engine.begin(1, *asks)
    message = worker.expect_round()
    assert (message.session, message.round, message.context_only) == (SESSION, 1, False)
    assert got(message) == sent(1, *asks)
    wanted = [(ask.slot, ask.generation, ask.draft, ask.anchor if ask.draft else -1) for ask in asks]
    assert [(r.request_slot, r.generation, r.draft, r.anchor) for r in message.requests] == wanted
    ids = [(7 * i + 3) % 1000 for i in range(3 * len(asks))]
    worker.answer(message, ids)
    assert loop.engine.finish(1) is Verdict.OK
    assert loop.engine.ids(1, len(asks)) == ids
    assert loop.counter("rows_sent") == len(message.positions)
    assert loop.counter("rows_rejected") == sum(ask.rejected for ask in asks)


def test_a_rounds_times_are_in_order(loop: Running, worker: FakeWorker) -> None:
    before = time.monotonic_ns()
    good_round(loop, worker, 1)
    timing = loop.engine.timing(1)
    assert timing.round == 1
    times = [before, timing.seen_ns, timing.send_ns, timing.sent_ns, timing.replied_ns, timing.decided_ns]
    assert times == sorted(times)
    assert times[-1] <= time.monotonic_ns()


def test_many_rounds_use_every_slot(loop: Running, worker: FakeWorker) -> None:
    for t in range(1, 60):
        good_round(loop, worker, t)
    loop.booked(Verdict.OK, 59)
    until(lambda: loop.loop.histogram(0).count == 59, "the last one's time is noted")


def test_the_counter_wraps(worker: FakeWorker) -> None:
    base = 0xFFFF_FFFD
    with running(worker, base=base) as loop:
        loop.up(worker)
        for t in (0xFFFF_FFFE, 0xFFFF_FFFF, 0, 1, 2, 3):
            good_round(loop, worker, t)
        loop.booked(Verdict.OK, 6)


def test_rounds_that_wait_in_their_slots_go_out_in_order(loop: Running, worker: FakeWorker) -> None:
    for t in range(1, 5):
        loop.engine.fill(t, [Ask(rows=2)], ring_offset=t * 4096)
        loop.engine.gather(t)
    loop.engine.submit(4)
    for t in range(1, 5):
        message = worker.expect_round()
        assert message.round == t
        assert got(message) == sent(t, Ask(rows=2))
        assert loop.engine.word(Word.RETIRED) == t - 1
        worker.answer(message)
        until(lambda t=t: loop.engine.word(Word.RETIRED) == t, "retired")  # type: ignore[misc]


def test_extra_bytes_come_back_too() -> None:
    geometry = Geometry(
        slots=4, max_requests=4, state_slots=8, row_bytes=64, drafts=3, vocab=1000, extra_bytes=5, ring_bytes=1 << 16
    )
    with fake_worker(geometry) as worker, running(worker, geometry=geometry) as loop:
        loop.up(worker)
        loop.engine.begin(1, Ask(), Ask(slot=1))
        worker.answer(worker.expect_round(), extra=b"0123456789")
        assert loop.engine.finish(1) is Verdict.OK
        assert loop.engine.extra(1, 2) == b"0123456789"


def test_nothing_is_released_before_it_is_gathered(loop: Running, worker: FakeWorker) -> None:
    loop.engine.fill(1, [Ask()])
    loop.engine.submit(1)
    beat = loop.engine.word(Word.BEAT)
    until(lambda: loop.engine.word(Word.BEAT) >= beat + 4, "the beat goes on while a round is not gathered")
    assert (loop.engine.word(Word.RELEASED), loop.engine.word(Word.RETIRED)) == (0, 0)
    assert loop.engine.verdict(1) is Verdict.OPEN
    loop.engine.gather(1)
    worker.answer(worker.expect_round())
    assert loop.engine.finish(1) is Verdict.OK


def test_the_beat_goes_on_at_rest_and_while_a_reply_is_awaited(loop: Running, worker: FakeWorker) -> None:
    beat = loop.engine.word(Word.BEAT)
    until(lambda: loop.engine.word(Word.BEAT) >= beat + 4, "the beat goes on at rest")
    loop.engine.begin(1)
    message = worker.expect_round()
    beat = loop.engine.word(Word.BEAT)
    until(lambda: loop.engine.word(Word.BEAT) >= beat + 4, "the beat goes on while a reply is awaited")
    worker.answer(message)
    assert loop.engine.finish(1) is Verdict.OK


def test_without_a_link_a_gathered_round_ends_at_once() -> None:
    with running() as loop:
        loop.engine.begin(1)
        assert loop.engine.finish(1) is Verdict.DISCONNECTED
        loop.engine.begin(2, context_only=True)
        assert loop.engine.finish(2) is Verdict.DISCONNECTED
        loop.booked(Verdict.DISCONNECTED, 2)


def test_no_reply_is_a_timeout_and_the_late_one_is_never_used(worker: FakeWorker) -> None:
    with running(worker, network_timeout_ns=50 * MS) as loop:
        loop.up(worker)
        start = time.monotonic()
        loop.engine.begin(1)
        late = worker.expect_round()
        assert loop.engine.finish(1) is Verdict.TIMEOUT
        assert time.monotonic() - start >= 0.05
        assert loop.wait_for(EventKind.LINK_RETURNED).reason == loop.wait_for(EventKind.LINK_WANTED).reason
        loop.engine.begin(2)  # at once: no link
        assert loop.engine.finish(2) is Verdict.DISCONNECTED
        worker.answer(late, [9, 9, 9])
        loop.up(worker)
        good_round(loop, worker, 3)
        assert loop.engine.ids(1) == [0, 0, 0], "what came too late was never stored"


def test_a_worker_that_says_no_refuses_the_round(loop: Running, worker: FakeWorker) -> None:
    for t, status in enumerate((Status.BAD_ROUND, Status.BUSY, Status.FAILED), 1):
        loop.engine.begin(t)
        worker.send(status_reply(worker.expect_round().round, status))
        assert loop.engine.finish(t) is Verdict.REFUSED
    good_round(loop, worker, 4)


def test_a_worker_that_lost_the_session_is_opened_again(loop: Running, worker: FakeWorker) -> None:
    loop.engine.begin(1)
    worker.send(status_reply(worker.expect_round().round, Status.UNKNOWN_SESSION))
    assert loop.engine.finish(1) is Verdict.REFUSED
    worker.open()
    loop.wait_for(EventKind.LINK_UP, 2)
    good_round(loop, worker, 2)
    assert loop.counter("unknown_sessions") == 1


def test_a_context_only_round_waits_for_no_reply(loop: Running, worker: FakeWorker) -> None:
    asks = [Ask(rows=16, prefill=True), Ask(slot=1, rows=8, prefill=True)]
    loop.engine.begin(1, *asks, context_only=True)
    assert loop.engine.finish(1) is Verdict.OK
    message = worker.expect_round()
    assert message.context_only
    assert got(message) == sent(1, *asks)
    assert [(r.draft, r.anchor) for r in message.requests] == [(False, -1)] * 2
    worker.answer(message)  # nobody asked
    good_round(loop, worker, 2)
    until(lambda: loop.loop.histogram(0).count, "the second round is booked")
    assert loop.counter("context_only") == 1
    assert loop.dropped("STALE") == 1
    assert loop.loop.histogram(0).count == 1, "a round's time is of rounds that waited for a reply"


def test_draining_refuses_new_rounds_until_it_is_over(loop: Running, worker: FakeWorker) -> None:
    loop.engine.begin(1)
    message = worker.expect_round()
    loop.loop.drain()
    until(lambda: loop.engine.word(Word.PHASE) == Phase.DRAINING, "the phase says so")
    worker.answer(message)
    assert loop.engine.finish(1) is Verdict.OK, "the round in flight ends as it would"
    loop.engine.begin(2)
    assert loop.engine.finish(2) is Verdict.DRAINING
    loop.resume()
    until(lambda: loop.engine.word(Word.PHASE) == Phase.RUNNING, "the phase says so")
    good_round(loop, worker, 3)


@pytest.mark.parametrize("verdict", [Verdict.EXPIRED, Verdict.LOST])
def test_a_round_that_the_watchdog_decided_stays_so(loop: Running, worker: FakeWorker, verdict: Verdict) -> None:
    loop.engine.begin(1)
    message = worker.expect_round()
    loop.engine.set_verdict(1, verdict)
    worker.answer(message)
    assert loop.engine.finish(1) is verdict, "released and retired all the same"
    loop.booked(verdict, 1)
    assert loop.counter("outvoted") == 1
    good_round(loop, worker, 2)


def test_released_never_goes_back(loop: Running, worker: FakeWorker) -> None:
    """The watchdog may be ahead: it released rounds that the loop still works on."""
    for t in (1, 2):
        loop.engine.fill(t, [Ask()], ring_offset=t * 4096)
        loop.engine.gather(t)
    loop.engine.submit(2)
    message = worker.expect_round()
    loop.engine.set_verdict(1, Verdict.EXPIRED)
    loop.engine.set_verdict(2, Verdict.EXPIRED)
    loop.engine.set_released(2)
    worker.answer(message)
    until(lambda: loop.engine.word(Word.RETIRED) == 1, "round 1 retired")
    assert loop.engine.word(Word.RELEASED) == 2
    worker.answer(worker.expect_round())
    assert loop.engine.finish(2) is Verdict.EXPIRED


def test_the_same_region_serves_the_next_session(worker: FakeWorker) -> None:
    with running(worker) as first:
        first.up(worker)
        for t in range(1, 8):
            good_round(first, worker, t)
        first.stop()
        worker.expect(Kind.CLOSE)
        with first.again(base=7) as second:
            second.up(worker)
            assert second.loop.link_state() is LinkState.UP
            assert second.engine.word(Word.PHASE) == Phase.RUNNING
            good_round(second, worker, 8)


def test_a_fake_engine_lays_its_rows_where_the_layout_says() -> None:
    """The harness itself: wrong offsets would make half of these tests pass for nothing."""
    engine = FakeEngine()
    try:
        engine.fill(1, [Ask(rows=2), Ask(slot=3, rows=1)])
        assert engine.header(1).n_rows == 3
        assert engine.requests(1)[1].first_row == 2
        assert engine.view.verdict(1) == (1, Verdict.OPEN)
    finally:
        engine.close()
