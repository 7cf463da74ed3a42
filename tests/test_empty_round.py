# SPDX-License-Identifier: Apache-2.0
"""
Empty rounds: the whole way of a round with nobody in it, which tells what the hand-off itself costs.

And beside what else goes on: rows that wait, synchronous rounds, the counter's wrap, a drain, a worker that comes and is lost.
"""

from __future__ import annotations

import time

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cuda_harness import cuda
from engine_harness import LARGE, Ask, Device, FakeDaemon, drained, engine
from fake_engine import PATIENCE_S, FakeEngine
from fake_worker import FakeWorker, fake_worker
from loop_harness import MS, Running, running
from proxyd_harness import Daemon
from shim_harness import shim_with
from test_engine_backlog import TIGHT
from test_selftest import ME

from engine_shim import Mode, connect
from hostflag.verdicts import Skip, Verdict
from proxyd.sessions.roundloop import BreakerState, EventKind


WRAP = (0xFFFF_FFFE, 0xFFFF_FFFF, 0, 1, 2)


def empty(engine: FakeEngine, t: int) -> Verdict:
    engine.fill(t, [])
    engine.gather(t)
    engine.submit(t)
    return engine.finish(t)


def without_end(loop: Running, t: int, there: Callable[[], object]) -> int:
    """Do empty rounds behind round ``t``, one on the other, until something is there. Returns the last one's number."""
    end = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < end
        for _ in range(20):
            t += 1
            assert empty(loop.engine, t) is Verdict.OK
    return t


def answered(loop: Running, worker: FakeWorker, t: int) -> int:
    loop.engine.begin(t)
    worker.answer(worker.expect_round(), [1, 2, 3])
    assert loop.engine.finish(t) is Verdict.OK
    return t


def test_it_goes_to_the_daemon_and_back_with_nothing_copied_and_no_worker(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        session = connect(daemon.path, geometry=LARGE, model="test", engine=ME, stream=gpu.stream, deadline_ms=10_000.0)
        batch = session.batch()
        assert not batch.empty
        assert session.submit(batch).skip is Skip.NOTHING
        batch.empty = True
        before = Counter(gpu.stream.driver.calls())
        ticket = session.submit(batch)
        calls = Counter(gpu.stream.driver.calls()) - before
        assert calls == {"cuStreamIsCapturing": 1, "cuStreamBatchMemOp": 1, "cuStreamWriteValue32": 1}
        gpu.drained()
        assert ticket.round
        assert session.verdict(ticket.round) is Verdict.OK
        assert session.drafts(ticket.round) == []
        session.settle()
        record = session.record(ticket.round)
        assert (record.n_requests, record.n_rows, record.timing.send_ns) == (0, 0, 0)
        # The same session's rounds with somebody in them need the worker, which is not there.
        Device(LARGE).fill(batch, [Ask(0, 1)])
        ticket = session.submit(batch)
        gpu.drained()
        assert ticket.round
        assert session.verdict(ticket.round) is Verdict.DISCONNECTED
        counted = daemon.scrape()
        assert counted['dsv41_proxyd_rounds_total{verdict="ok"}'] == 1
        assert not any(value for name, value in counted.items() if "_seconds_count" in name and "network" in name)
        session.close()


def test_it_is_not_for_a_batch_with_requests(short_dir: Path) -> None:
    """There ``empty`` says nothing: rows and drafts go as ever."""
    with Daemon(short_dir) as daemon, cuda() as gpu:
        session = connect(daemon.path, geometry=LARGE, model="test", engine=ME, stream=gpu.stream, deadline_ms=10_000.0)
        batch = session.batch()
        Device(LARGE).fill(batch, [Ask(0, 2)])
        batch.empty = True
        ticket = session.submit(batch)
        assert ticket.round
        assert [request.rows for request in session.table(ticket.round).requests] == [2]
        gpu.drained()
        session.close()


def test_a_worker_does_not_hear_of_it() -> None:
    with fake_worker() as worker, running(worker) as loop:
        loop.up(worker)
        assert empty(loop.engine, 1) is Verdict.OK
        loop.engine.begin(2)
        message = worker.expect_round()
        assert message.round == 2
        worker.answer(message, [1, 2, 3])
        assert loop.engine.finish(2) is Verdict.OK


def test_rows_that_wait_go_before_it(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, TIGHT) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(slot, 16, prefill=True) for slot in range(4)])
        first = session.submit(batch)
        for t in first.rounds:
            daemon.hand.finish(t)
        drained(stream)
        batch.n_requests, batch.empty = 0, True
        ticket = session.submit(batch)
        assert ticket.context_rounds > 0
        assert ticket.skip is Skip.NONE
        assert 0 < ticket.rows == first.rows_deferred - ticket.rows_deferred
        assert ticket.round == ticket.rounds[-1]
        tables = [session.table(t) for t in ticket.rounds]
        assert [table.context_only for table in tables] == [True] * ticket.context_rounds + [False]
        assert tables[-1].requests == ()
        for t in ticket.rounds:
            daemon.hand.finish(t)
        drained(stream)
        assert session.verdict(ticket.round) is Verdict.OK


def test_a_synchronous_one_is_over_when_submit_returns(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, shim_with(daemon.path, mode=Mode.SYNC) as driver:
        driver.session()
        driver.batch.empty = True
        for _ in range(20):
            ticket = driver.shim.submit(driver.batch)
            assert ticket.ref
            assert driver.shim.consumed(ticket.ref)
            assert driver.shim.verdict(ticket.ref) is Verdict.OK
            assert driver.shim.drafts(ticket.ref) == []


def test_without_a_session_there_is_none(short_dir: Path) -> None:
    with shim_with(short_dir / "nobody") as driver:
        driver.batch.empty = True
        ticket = driver.shim.submit(driver.batch)
        assert (ticket.round, ticket.skip) == (None, Skip.NO_SESSION)


def test_the_counter_wraps_under_them() -> None:
    with fake_worker() as worker, running(worker, base=0xFFFF_FFFD) as loop:
        loop.up(worker)
        assert [empty(loop.engine, t) for t in WRAP] == [Verdict.OK] * len(WRAP)
        answered(loop, worker, 3)


def test_while_it_drains_they_end_as_others_do() -> None:
    with running() as loop:
        assert empty(loop.engine, 1) is Verdict.OK
        loop.loop.drain()
        assert empty(loop.engine, 2) is Verdict.DRAINING
        loop.resume()
        assert empty(loop.engine, 3) is Verdict.OK


def test_a_worker_comes_and_is_lost_while_nothing_else_is_asked_for() -> None:
    """The loop tends its link and its beat between rounds that never wait; they are no probes, and close no breaker."""
    with fake_worker() as worker, running(worker, breaker_failures=1, breaker_cool_ns=4_000 * MS) as loop:
        loop.give()
        t = without_end(loop, 0, lambda: worker.socket.poll(0))
        worker.open()
        t = without_end(loop, t, lambda: loop.heard(EventKind.LINK_UP))
        t = answered(loop, worker, t + 1)
        beats = loop.counter("beats")
        t = without_end(loop, t, lambda: loop.counter("beats") > beats + 2)
        worker.close()
        t = without_end(loop, t, lambda: loop.loop.breaker_state() is BreakerState.OPEN)
        t = without_end(loop, t, lambda: loop.heard(EventKind.LINK_DOWN))
        assert loop.loop.breaker_state() is BreakerState.OPEN
        assert loop.counter("breaker_probes") == 0
        loop.engine.begin(t + 1)
        assert loop.engine.finish(t + 1) is Verdict.DISCONNECTED
