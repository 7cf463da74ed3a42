# SPDX-License-Identifier: Apache-2.0
"""A link in the place of one that was up: the round loop waits for its worker, once."""

from __future__ import annotations

import time

from collections.abc import Iterator

import pytest

from fake_engine import SESSION
from fake_worker import FakeWorker, fake_worker
from loop_harness import MS, running

from hostflag.control import Opened
from hostflag.verdicts import Verdict
from hostflag.wire import Kind, encode_control


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with fake_worker() as one:
        yield one


def test_a_round_waits_for_the_worker_that_takes_anothers_place(worker: FakeWorker) -> None:
    """A change of worker costs no round: the new one has been sent OPEN and is about to answer."""
    with running(worker) as loop:
        loop.up(worker)
        loop.give()
        worker.expect(Kind.OPEN)
        loop.engine.begin(1)
        time.sleep(0.02)
        assert loop.engine.verdict(1) is Verdict.OPEN
        worker.send(encode_control(SESSION, Opened(worker="another", drafter="none")))
        worker.answer(worker.expect_round(), [5, 6, 7])
        assert loop.engine.finish(1) is Verdict.OK


def test_a_worker_that_does_not_answer_in_anothers_place_is_waited_for_once(worker: FakeWorker) -> None:
    with running(worker, network_timeout_ns=200 * MS) as loop:
        loop.up(worker)
        loop.give()
        worker.expect(Kind.OPEN)
        began = time.monotonic()
        loop.engine.begin(1)
        assert loop.engine.finish(1) is Verdict.DISCONNECTED
        assert time.monotonic() - began >= 0.1
        for t in range(2, 60):
            loop.engine.begin(t)
            assert loop.engine.finish(t) is Verdict.DISCONNECTED
        assert time.monotonic() - began < 58 * 0.1, "each would have waited for as long"


def test_a_refusal_in_anothers_place_ends_the_wait(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.up(worker)
        loop.give()
        worker.expect(Kind.OPEN)
        loop.engine.begin(1)
        worker.refuse("model")
        assert loop.engine.finish(1) is Verdict.REFUSED
