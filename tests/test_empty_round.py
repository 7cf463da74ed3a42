# SPDX-License-Identifier: Apache-2.0
"""Empty rounds: the whole way of a round with nobody in it, which tells what the hand-off itself costs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from cuda_harness import cuda
from engine_harness import LARGE, Ask, Device
from fake_engine import FakeEngine
from fake_worker import fake_worker
from loop_harness import running
from proxyd_harness import Daemon
from test_selftest import ME

from engine_shim import connect
from hostflag.verdicts import Skip, Verdict


def test_it_goes_to_the_daemon_and_back_with_nothing_copied_and_no_worker(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        session = connect(daemon.path, geometry=LARGE, model="test", engine=ME, stream=gpu.stream, deadline_ms=10_000.0)
        batch = session.batch()
        assert not batch.empty
        assert session.submit(batch).skip is Skip.EMPTY
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
        engine: FakeEngine = loop.engine
        engine.fill(1, [])
        engine.gather(1)
        engine.submit(1)
        assert engine.finish(1) is Verdict.OK
        engine.begin(2)
        message = worker.expect_round()
        assert message.round == 2
        worker.answer(message, [1, 2, 3])
        assert engine.finish(2) is Verdict.OK
