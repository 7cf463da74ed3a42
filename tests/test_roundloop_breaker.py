# SPDX-License-Identifier: Apache-2.0
"""The round loop's circuit breaker: a worker that fails is left alone, then asked by one round."""

from __future__ import annotations

import time

from collections.abc import Iterator
from typing import Final

import pytest

from fake_engine import Ask
from fake_worker import FakeWorker, fake_worker, status_reply
from loop_harness import MS, Running, running

from hostflag.control import Opened
from hostflag.verdicts import Verdict
from hostflag.wire import Kind, Status, encode_control
from proxyd.sessions.roundloop import BreakerState, EventKind


COOL_MS: Final = 60
LONG_MS: Final = 4000  # the breaker does not cool down within a test


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with fake_worker() as one:
        yield one


def good(loop: Running, worker: FakeWorker, t: int) -> None:
    loop.engine.begin(t)
    worker.answer(worker.expect_round())
    assert loop.engine.finish(t) is Verdict.OK


def bad(loop: Running, worker: FakeWorker, t: int) -> None:
    loop.engine.begin(t)
    worker.answer(worker.expect_round(), [-1, -1, -1])
    assert loop.engine.finish(t) is Verdict.BAD_REPLY


def at_once(loop: Running, worker: FakeWorker, t: int) -> None:
    """Do a round that must not reach the worker."""
    loop.engine.begin(t)
    assert loop.engine.finish(t) is Verdict.BREAKER
    assert worker.socket.poll(0) == 0


def opened(loop: Running, worker: FakeWorker, first: int = 1) -> int:
    """Open the breaker by three bad replies; return the next round."""
    for t in range(first, first + 3):
        bad(loop, worker, t)
    assert loop.loop.breaker_state() is BreakerState.OPEN
    return first + 3


def test_it_opens_at_the_failure_that_is_one_too_many(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=3, breaker_cool_ns=LONG_MS * MS) as loop:
        loop.up(worker)
        bad(loop, worker, 1)
        bad(loop, worker, 2)
        assert loop.loop.breaker_state() is BreakerState.CLOSED
        bad(loop, worker, 3)
        assert loop.wait_for(EventKind.BREAKER_OPEN).reason
        for t in range(4, 10):
            at_once(loop, worker, t)
        loop.booked(Verdict.BREAKER, 6)
        assert loop.counter("breaker_opens") == 1
        assert loop.counter("breaker_probes") == 0


def test_a_good_round_in_between_starts_the_count_anew(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=3) as loop:
        loop.up(worker)
        for t in range(1, 13, 3):
            bad(loop, worker, t)
            bad(loop, worker, t + 1)
            good(loop, worker, t + 2)
        assert loop.counter("breaker_opens") == 0


def test_without_a_limit_it_never_opens(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=0) as loop:
        loop.up(worker)
        for t in range(1, 12):
            bad(loop, worker, t)
        assert loop.loop.breaker_state() is BreakerState.CLOSED


def test_timeouts_count_over_links(worker: FakeWorker) -> None:
    """Each timeout ends the link; what the worker did before is not forgotten with it."""
    with running(worker, network_timeout_ns=30 * MS, breaker_failures=2, breaker_cool_ns=LONG_MS * MS) as loop:
        for t in (1, 2):
            loop.up(worker)
            loop.engine.begin(t)
            worker.expect_round()
            assert loop.engine.finish(t) is Verdict.TIMEOUT
            loop.wait_for(EventKind.LINK_WANTED, t)
        loop.up(worker)
        at_once(loop, worker, 3)


def test_cooled_down_one_round_goes_through_and_closes_it(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=3, breaker_cool_ns=COOL_MS * MS) as loop:
        loop.up(worker)
        t = opened(loop, worker)
        time.sleep(COOL_MS / 1000)
        loop.engine.begin(t)
        probe = worker.expect_round()
        assert loop.loop.breaker_state() is BreakerState.HALF_OPEN
        worker.answer(probe)
        assert loop.engine.finish(t) is Verdict.OK
        assert loop.loop.breaker_state() is BreakerState.CLOSED
        kinds = [event.kind.name for event in loop.events + loop.loop.events() if "BREAKER" in event.kind.name]
        assert kinds == ["BREAKER_OPEN", "BREAKER_PROBE", "BREAKER_CLOSED"]
        bad(loop, worker, t + 1)  # the count began anew
        good(loop, worker, t + 2)
        assert (loop.counter("breaker_opens"), loop.counter("breaker_probes")) == (1, 1)


def test_a_probe_that_fails_opens_it_for_longer(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=3, breaker_cool_ns=COOL_MS * MS) as loop:
        loop.up(worker)
        t = opened(loop, worker)
        time.sleep(COOL_MS / 1000)
        bad(loop, worker, t)  # the probe
        failed = time.monotonic()
        while True:
            t += 1
            loop.engine.begin(t)
            if worker.socket.poll(2):
                break
            assert loop.engine.finish(t) is Verdict.BREAKER
        assert time.monotonic() - failed >= 2 * COOL_MS / 1000 - 0.01
        worker.answer(worker.expect_round())
        assert loop.engine.finish(t) is Verdict.OK
        assert (loop.counter("breaker_opens"), loop.counter("breaker_probes")) == (2, 2)


def test_an_answer_that_says_no_closes_it(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=3, breaker_cool_ns=COOL_MS * MS) as loop:
        loop.up(worker)
        t = opened(loop, worker)
        time.sleep(COOL_MS / 1000)
        loop.engine.begin(t)
        worker.expect_round()
        worker.send(status_reply(t, Status.BUSY))
        assert loop.engine.finish(t) is Verdict.REFUSED
        assert loop.loop.breaker_state() is BreakerState.CLOSED


def test_a_context_only_round_is_no_probe(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=3, breaker_cool_ns=COOL_MS * MS) as loop:
        loop.up(worker)
        t = opened(loop, worker)
        time.sleep(COOL_MS / 1000)
        loop.engine.begin(t, Ask(draft=False), context_only=True)
        assert loop.engine.finish(t) is Verdict.BREAKER
        good(loop, worker, t + 1)


def test_without_a_worker_rounds_end_disconnected_and_use_no_probe(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=3, breaker_cool_ns=COOL_MS * MS) as loop:
        loop.up(worker)
        t = opened(loop, worker)
        time.sleep(COOL_MS / 1000)
        loop.give()  # in the place of the one that is up; the worker does not answer its OPEN yet
        header = worker.expect(Kind.OPEN)
        loop.engine.begin(t)
        assert loop.engine.finish(t) is Verdict.DISCONNECTED
        worker.send(encode_control(header.session, Opened(worker="fake", drafter="none")))
        loop.wait_for(EventKind.LINK_UP, 2)
        assert loop.loop.breaker_state() is BreakerState.OPEN
        good(loop, worker, t + 1)


def test_a_probe_that_is_cut_short_is_made_again(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=3, breaker_cool_ns=COOL_MS * MS) as loop:
        loop.up(worker)
        t = opened(loop, worker)
        time.sleep(COOL_MS / 1000)
        loop.engine.begin(t)
        worker.expect_round()
        endpoint = worker.endpoint
        worker.close()
        assert loop.engine.finish(t) is Verdict.DISCONNECTED
        assert loop.loop.breaker_state() is BreakerState.OPEN
        with fake_worker(endpoint=endpoint) as again:
            again.open()
            loop.wait_for(EventKind.LINK_UP, 2)
            good(loop, again, t + 1)
        assert (loop.counter("breaker_opens"), loop.counter("breaker_probes")) == (1, 2)


def test_another_worker_begins_without_failures(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=3, breaker_cool_ns=LONG_MS * MS) as loop:
        loop.up(worker)
        t = opened(loop, worker)
        endpoint = worker.endpoint
        worker.close()
        with fake_worker(endpoint=endpoint) as other:
            header = other.expect(Kind.OPEN)
            other.send(encode_control(header.session, Opened(worker="another", drafter="none")))
            loop.wait_for(EventKind.LINK_UP, 2)
            good(loop, other, t)
        assert loop.counter("worker_changes") == 1


def breaker_events(loop: Running) -> list[str]:
    return [event.kind.name for event in loop.events + loop.loop.events() if "BREAKER" in event.kind.name]


@pytest.mark.parametrize("name", ["fake", "another"])
def test_a_lost_connection_opens_it_until_a_worker_is_there(worker: FakeWorker, name: str) -> None:
    with running(worker, breaker_failures=3, breaker_cool_ns=LONG_MS * MS) as loop:
        loop.up(worker)
        good(loop, worker, 1)
        endpoint = worker.endpoint
        worker.close()
        assert "connection" in (loop.wait_for(EventKind.BREAKER_OPEN).reason or "")
        assert loop.loop.breaker_state() is BreakerState.OPEN
        for t in (2, 3):
            loop.engine.begin(t)
            assert loop.engine.finish(t) is Verdict.DISCONNECTED, "still what it is"
        with fake_worker(endpoint=endpoint) as again:
            header = again.expect(Kind.OPEN)
            again.send(encode_control(header.session, Opened(worker=name, drafter="none")))
            loop.wait_for(EventKind.LINK_UP, 2)
            assert loop.loop.breaker_state() is BreakerState.CLOSED
            loop.engine.begin(4, Ask(draft=False), context_only=True)
            again.expect_round()
            assert loop.engine.finish(4) is Verdict.OK, "no probe is needed"
            good(loop, again, 5)
        assert (loop.counter("breaker_opens"), loop.counter("breaker_probes")) == (1, 0)
        assert breaker_events(loop) == ["BREAKER_OPEN", "BREAKER_CLOSED"]


def test_what_failed_before_the_connection_went_still_counts(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=3, breaker_cool_ns=LONG_MS * MS) as loop:
        loop.up(worker)
        bad(loop, worker, 1)
        bad(loop, worker, 2)
        endpoint = worker.endpoint
        worker.close()
        loop.wait_for(EventKind.BREAKER_OPEN)
        with fake_worker(endpoint=endpoint) as again:
            again.open()
            loop.wait_for(EventKind.LINK_UP, 2)
            assert loop.loop.breaker_state() is BreakerState.CLOSED
            bad(loop, again, 3)
            at_once(loop, again, 4)
        assert loop.counter("breaker_opens") == 2


def test_without_a_limit_a_lost_connection_opens_nothing(worker: FakeWorker) -> None:
    with running(worker, breaker_failures=0) as loop:
        loop.up(worker)
        worker.close()
        loop.wait_for(EventKind.LINK_DOWN)
        assert loop.loop.breaker_state() is BreakerState.CLOSED
        assert loop.counter("breaker_opens") == 0


def test_the_same_worker_on_another_connection_is_no_change(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.up(worker)
        loop.up(worker)
        assert loop.counter("worker_changes") == 0
