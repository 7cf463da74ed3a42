# SPDX-License-Identifier: Apache-2.0
"""A worker that is slow to answer OPEN or PING gets more time at each try."""

from __future__ import annotations

import time

from collections.abc import Iterator
from typing import Final

import pytest

from fake_engine import SESSION, until
from fake_worker import FakeWorker, fake_worker
from loop_harness import MS, running

from hostflag.control import Opened
from hostflag.wire import Kind, encode_control, encode_header
from proxyd.sessions.roundloop import EventKind, LinkState


SLOW_S: Final = 0.2  # what the worker takes for an answer: more than the limit, and than two beats
TRIES: Final = 12


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with fake_worker() as one:
        yield one


def test_a_worker_that_is_slow_to_open_gets_more_time_at_each_try(worker: FakeWorker) -> None:
    """It works through OPENs of links that were given up meanwhile: with the same limit each time it would do so for ever."""
    with running(worker, open_limit_ns=30 * MS) as loop:
        for number in range(TRIES):
            loop.give()
            worker.expect(Kind.OPEN)
            time.sleep(SLOW_S)
            worker.send(encode_control(SESSION, Opened(worker="slow", drafter="none")))
            until(
                lambda n=number: loop.heard(EventKind.LINK_UP) or len(loop.heard(EventKind.LINK_WANTED)) > n,  # type: ignore[misc]
                "the link is up, or given up",
            )
            if loop.heard(EventKind.LINK_UP):
                break
        assert loop.heard(EventKind.LINK_WANTED), "slower than the first limit"
        assert loop.loop.link_state() is LinkState.UP


def test_a_worker_that_is_slow_to_answer_a_ping_gets_more_time_at_each_try(worker: FakeWorker) -> None:
    with running(worker, ping_ns=20 * MS, ping_limit_ns=30 * MS) as loop:
        for number in range(TRIES):
            loop.up(worker)
            header = worker.expect(Kind.PING)
            time.sleep(SLOW_S)
            worker.send(encode_header(Kind.PONG, SESSION, header.round))
            until(
                lambda n=number: loop.counter("pongs") or len(loop.heard(EventKind.LINK_WANTED)) > n,  # type: ignore[misc]
                "the PONG is taken, or the link given up",
            )
            if loop.counter("pongs"):
                break
        assert loop.heard(EventKind.LINK_WANTED), "slower than the first limit"
        assert loop.counter("pongs") >= 1
