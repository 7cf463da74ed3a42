# SPDX-License-Identifier: Apache-2.0
"""What a daemon says of a worker that is not to be had: which one, and why, in the log, /healthz and status."""

from __future__ import annotations

import contextlib
import re

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxyd_engine import Engine, connect
from proxyd_harness import PATIENCE_S, Daemon, until
from proxyd_worker import Rounds, Worker, friendly
from test_proxyd_curve import BARRED, daemon_flags, keys, worker_flags
from test_proxyd_health import healthz, status_of, until_ill, until_well
from worker_peer import running_worker

from hostflag import messages as m
from hostflag import wire
from hostflag.channel import Channel, operator_end
from hostflag.control import Refused
from hostflag.messages import ToOperator
from hostflag.verdicts import Verdict
from hostflag.wire import Kind
from proxyd.links import monitor


__all__ = ["keys"]  # a fixture
NOT_ALLOWED = "the worker does not allow our CURVE key"


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir) as running:
        yield running


@contextlib.contextmanager
def operating(daemon: Daemon) -> Iterator[Callable[[m.ToDaemon], ToOperator]]:
    def ask(channel: Channel[ToOperator], request: m.ToDaemon) -> ToOperator:
        channel.send(request)
        return channel.receive(PATIENCE_S).message

    with operator_end(connect(daemon.path)) as channel:
        assert isinstance(ask(channel, m.OperatorHello(protocol=m.PROTOCOL_VERSION)), m.Done)
        yield lambda request: ask(channel, request)


@pytest.fixture
def barring(short_dir: Path, keys: Path) -> Iterator[Daemon]:
    """A daemon whose worker allows another key than its own."""
    with (
        running_worker(short_dir, *worker_flags(keys, short_dir / "others" / "daemon.pub")) as worker,
        Daemon(short_dir, *daemon_flags(keys), worker=worker.endpoint) as daemon,
    ):
        yield daemon


def test_a_worker_that_bars_us_is_said_before_an_engine_comes(barring: Daemon) -> None:
    line = barring.wait_for("worker link barred")
    assert (line["endpoint"], line["reason"]) == (barring.worker, NOT_ALLOWED)
    until_ill(barring, f"no link to {barring.worker}: {NOT_ALLOWED}")
    assert status_of(barring).reasons == (f"no link to {barring.worker}: {NOT_ALLOWED}",)
    assert barring.wait_for("no worker answers, waiting for one")["faults"] == {barring.worker: NOT_ALLOWED}
    until(lambda: barring.scrape()[BARRED] >= 2, "two looks were barred")
    barring.exactly("worker link barred", 1)


def test_a_worker_that_bars_us_is_said_once_for_all_sessions(barring: Daemon) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(4):
            stack.enter_context(Engine(barring.path)).ready(f"engine {number}")
        before = barring.scrape()[BARRED]
        until(lambda: barring.scrape()[BARRED] >= before + 8, "each was barred")
        barring.exactly("worker link barred", 1)
        for number in range(4):
            until_ill(
                barring, f"engine {number} rank 0: no worker (link connecting at {barring.worker}: {NOT_ALLOWED})"
            )


def test_the_words_are_those_of_the_round_loop(root: Path) -> None:
    words = re.sub(r"\s+", " ", (root / "native" / "zmqincoming.c").read_text())
    for text in (monitor.WENT, monitor.NO_DETAIL, monitor.MISMATCH, monitor.PROTOCOL, monitor.AUTH):
        assert f'"{text}"' in words


def test_a_refusal_is_said_with_the_workers_reason(daemon: Daemon) -> None:
    def refusing(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        if header.kind is Kind.OPEN:
            worker.send(parts[0], wire.encode_control(header.session, Refused(code="model", reason="another\x1b one")))
        else:
            friendly(worker, parts, header)

    with Worker(daemon.worker, refusing) as worker, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready("the engine"))
        text = f"the engine rank 0: no worker (link refused at {daemon.worker}: model: another? one)"
        until_ill(daemon, text)
        assert status_of(daemon).reasons == (text,)
        worker.answer = friendly
        rounds.until(Verdict.OK)
        until_well(daemon)


def test_after_a_switch_it_is_the_new_worker_that_is_missed(daemon: Daemon, short_dir: Path) -> None:
    other = f"ipc://{short_dir}/other"
    with Worker(daemon.worker), Engine(daemon.path) as engine, operating(daemon) as ask:
        Rounds(engine.ready("the engine")).until(Verdict.OK)
        assert status_of(daemon).sessions[0].endpoint == daemon.worker
        ask(m.SwitchWorker(endpoints=(other,)))
        until_ill(daemon, f"the engine rank 0: no worker (link connecting at {other})")
        assert status_of(daemon).sessions[0].endpoint == other


def test_a_switch_without_sessions_says_whether_somebody_answers(daemon: Daemon, short_dir: Path) -> None:
    other = f"ipc://{short_dir}/other"
    with Worker(daemon.worker), operating(daemon) as ask:
        until_well(daemon)
        assert ask(m.SwitchWorker(endpoints=(other,))) == m.Done(
            text=f"the worker is {other}, which has not answered yet"
        )
        assert healthz(daemon)[0] == 503, "what the worker before answered says nothing of this one"
        until_ill(daemon, f"no worker answers at {other}")
        assert ask(m.SwitchWorker(endpoints=(daemon.worker,))) == m.Done(text=f"the worker is {daemon.worker}")
        until_well(daemon)
