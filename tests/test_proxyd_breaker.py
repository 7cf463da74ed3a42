# SPDX-License-Identifier: Apache-2.0
"""The circuit breaker as a whole daemon shows it: rounds decided at once, two lines in the log, metrics."""

from __future__ import annotations

import logging
import time

from collections import Counter
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from proxyd_engine import Engine, hello
from proxyd_harness import Daemon, until
from proxyd_worker import Rounds, Worker, friendly, reply_to

from hostflag import messages as m
from hostflag import wire
from hostflag.logging import RateLimit
from hostflag.verdicts import Verdict
from hostflag.wire import Kind
from proxyd.config.settings import Settings
from proxyd.sessions.breakerlog import MOST_LINES, BreakerLog
from proxyd.sessions.loopsettings import LEAST_NAP_US, MOST_NAP_US, MOST_SPIN_US, loop_config
from proxyd.sessions.roundloop import EventKind, LoopEvent


FAILURES: Final = 4


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir, f"--breaker-failures={FAILURES}", "--breaker-cool-ms=50") as running:
        yield running


def short_replies(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
    """Answer rounds with half a reply."""
    if header.kind is Kind.ROUND:
        whole = reply_to(header)
        worker.send(parts[0], wire.encode_header(Kind.REPLY, header.session, header.round, 8) + whole[24:32])
    else:
        friendly(worker, parts, header)


def test_a_failing_worker_is_left_alone_and_tried_again(daemon: Daemon) -> None:
    with Worker(daemon.worker) as worker, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        worker.answer = short_replies
        assert [rounds.next() for _ in range(FAILURES)] == [Verdict.BAD_REPLY] * FAILURES
        began, seen = time.monotonic(), worker.rounds
        assert rounds.next() is Verdict.BREAKER
        assert daemon.scrape()['dsv41_proxyd_breaker_open{engine="engine",rank="0"}'] == 1
        until(lambda: rounds.next() is Verdict.BAD_REPLY, "a probe")
        until(lambda: rounds.next() is Verdict.BAD_REPLY, "another probe")
        assert time.monotonic() - began >= 0.15  # 50 ms, then 100 ms
        assert worker.rounds == seen + 2
        worker.answer = friendly
        rounds.until(Verdict.OK)
        assert {rounds.next() for _ in range(20)} == {Verdict.OK}
        assert daemon.wait_for("circuit breaker closed")["probes"] >= 3
    samples = daemon.scrape()
    probes = samples["dsv41_proxyd_breaker_probes_total"]
    assert samples["dsv41_proxyd_breaker_opens_total"] == probes  # all but the last one failed, and the first opening
    assert samples['dsv41_proxyd_rounds_total{verdict="breaker"}'] == rounds.verdicts.count(Verdict.BREAKER)
    daemon.exactly("circuit breaker open", 1)
    daemon.exactly("circuit breaker closed", 1)


def test_a_worker_that_comes_and_goes_again_and_again_fills_no_log() -> None:
    """Each lost connection opens the breaker, and the next OPENED closes it: ten times a second, if the worker likes."""
    written: list[str] = []

    def keep(_logger: object, _name: str, event: MutableMapping[str, Any]) -> str:
        written.append(event["event"])
        raise structlog.DropEvent

    log = structlog.wrap_logger(
        None,
        processors=[RateLimit(interval_s=60), keep],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    for each in [BreakerLog(log, rate_key=session) for session in ("a", "b")]:
        for kind in [EventKind.BREAKER_OPEN, EventKind.BREAKER_CLOSED] * 50:
            each.take(LoopEvent(kind, 1, b"", "the connection to the worker was lost"))
    assert Counter(written) == dict.fromkeys(["circuit breaker open", "circuit breaker closed"], 2 * MOST_LINES)


def test_hints_of_an_engine_are_kept_within_bounds() -> None:
    settings = Settings(spin_us=30.0, nap_us=15.0, breaker_failures=5, breaker_cool_ms=700.0)

    def waits(**hints: float) -> tuple[int, int]:
        config = loop_config(settings, hello(**hints), number=1, base=0)
        assert (config.breaker_failures, config.breaker_cool_ns) == (5, 700_000_000)
        return config.spin_ns, config.nap_ns

    assert waits() == (30_000, 15_000)
    assert waits(spin_us=100.0, nap_us=40.0) == (100_000, 40_000)
    assert waits(spin_us=0.0) == (0, 15_000)
    assert waits(spin_us=1e9, nap_us=1e9) == (MOST_SPIN_US * 1000, MOST_NAP_US * 1000)
    assert waits(nap_us=0.0) == (30_000, LEAST_NAP_US * 1000)


def test_a_session_runs_with_whatever_is_hinted(daemon: Daemon) -> None:
    for hints in ({"spin_us": 0.0, "nap_us": 0.0}, {"spin_us": 1e9, "nap_us": 1e9}):
        with Engine(daemon.path) as engine:
            assert isinstance(engine.ask(hello(**hints)), m.Welcome)
            assert isinstance(engine.ask(m.Create()), m.Region)
            assert isinstance(engine.receive(), m.Ready)
