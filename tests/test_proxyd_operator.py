# SPDX-License-Identifier: Apache-2.0
"""An operator at the daemon's socket, and dsv41-proxyctl: what it shows, what it changes, whom it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from proxyd_engine import Engine, connect, unharmed
from proxyd_harness import PATIENCE_S, Daemon, until
from proxyd_worker import Answer, Rounds, Worker, friendly

from hostflag import messages as m
from hostflag import wire
from hostflag.channel import Channel, ChannelClosed, operator_end
from hostflag.control import Opened
from hostflag.messages import ToOperator
from hostflag.verdicts import Verdict
from hostflag.wire import Kind
from proxyd.errors import RefusedError
from proxyd.operator import ctl
from proxyd.operator.operators import admit
from proxyd.sessions.admission import Admission
from proxyd.sessions.peer import Peer


SWITCHED_S: Final = 1.0  # what is promised
SLACK_S: Final = 2.0  # for a loaded machine


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir) as running:
        yield running


@pytest.fixture
def operator(daemon: Daemon) -> Iterator[Channel[ToOperator]]:
    with operator_end(connect(daemon.path)) as channel:
        assert isinstance(ask(channel, m.OperatorHello(protocol=m.PROTOCOL_VERSION)), m.Done)
        yield channel


def ask(channel: Channel[ToOperator], request: m.Message) -> ToOperator:
    channel.send(request)
    return channel.receive(PATIENCE_S).message


def named(name: str) -> Answer:
    """Return how a worker of that name answers."""

    def answer(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        if header.kind is Kind.OPEN:
            opened = Opened(worker=name, drafter="test")
            worker.send(parts[0], wire.encode_control(header.session, opened))
        else:
            friendly(worker, parts, header)

    return answer


def run(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxyd.operator.ctl", f"--socket={daemon.path}", *arguments]
    return subprocess.run(
        command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def switch_under_load(daemon: Daemon, rounds: Rounds, target: str, worker: Worker) -> list[Verdict]:
    """Switch by dsv41-proxyctl while rounds go on; return the verdicts of those that fell back."""
    before, done = worker.rounds, len(rounds.verdicts)
    with subprocess.Popen(
        [sys.executable, "-m", "proxyd.operator.ctl", f"--socket={daemon.path}", "switch-worker", target],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: rounds.next() and worker.rounds > before, "a round reaches the other worker")
        text, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, text) == (0, f"the worker is {target}\n")
    rounds.next()
    return [verdict for verdict in rounds.verdicts[done:] if verdict is not Verdict.OK]


def test_a_switch_under_load(daemon: Daemon, short_dir: Path) -> None:
    """At most the round in flight falls back, the session goes on, the old link is closed."""
    other = f"ipc://{short_dir}/other"
    with Worker(daemon.worker, named("a")) as first, Worker(other, named("b")) as second, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        held = daemon.resources()
        for _ in range(3):
            for target, worker in ((other, second), (daemon.worker, first)):
                assert len(switch_under_load(daemon, rounds, target, worker)) <= 1
        daemon.back_to(held)
        assert not daemon.said("session over")
        daemon.exactly("worker endpoint changed", 6)
        daemon.exactly("worker changed", 6)


def test_a_switch_takes_effect_within_a_second(daemon: Daemon, operator: Channel[ToOperator], short_dir: Path) -> None:
    other = f"ipc://{short_dir}/other"
    with Worker(daemon.worker), Worker(other, named("b")) as second, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        began = time.monotonic()
        operator.send(m.SwitchWorker(endpoints=(other,)))
        until(lambda: rounds.next() is Verdict.OK and second.rounds, "the other worker drafts")
        assert time.monotonic() - began < SWITCHED_S + SLACK_S
        assert isinstance(operator.receive(PATIENCE_S).message, m.Done)


def test_a_switch_away_from_a_dead_worker(daemon: Daemon, operator: Channel[ToOperator], short_dir: Path) -> None:
    other = f"ipc://{short_dir}/other"
    with Worker(other), Engine(daemon.path) as engine:
        engine.ready()
        assert engine.round(1) is Verdict.DISCONNECTED
        answer = ask(operator, m.SwitchWorker(endpoints=(other,)))
        assert answer == m.Done(text=f"the worker is {other}")
        assert engine.round(2) is Verdict.OK


def test_a_switch_to_where_nobody_is_says_so_and_waits_for_it(
    daemon: Daemon, operator: Channel[ToOperator], short_dir: Path
) -> None:
    other = f"ipc://{short_dir}/other"
    with Worker(daemon.worker), Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        answer = ask(operator, m.SwitchWorker(endpoints=(other,)))
        assert answer == m.Done(text=f"the worker is {other}, which has not answered yet")
        assert rounds.next() is Verdict.DISCONNECTED
        with Worker(other):
            rounds.until(Verdict.OK)


def test_a_switch_goes_to_the_first_that_answers(
    daemon: Daemon, operator: Channel[ToOperator], short_dir: Path
) -> None:
    absent, present = f"ipc://{short_dir}/absent", f"ipc://{short_dir}/present"
    with Worker(present), Engine(daemon.path) as engine:
        engine.ready()
        answer = ask(operator, m.SwitchWorker(endpoints=(absent, present)))
        assert answer == m.Done(text=f"the worker is {present}")
        assert engine.round(1) is Verdict.OK
        status = ask(operator, m.StatusRequest())
        assert isinstance(status, m.Status)
        assert (status.endpoints, status.endpoint) == ((absent, present), present)


def test_two_switches_at_once_are_both_answered(daemon: Daemon, operator: Channel[ToOperator], short_dir: Path) -> None:
    one, two = (f"ipc://{short_dir}/{name}" for name in ("one", "two"))
    with operator_end(connect(daemon.path)) as another, Worker(two):
        assert isinstance(ask(another, m.OperatorHello(protocol=m.PROTOCOL_VERSION)), m.Done)
        operator.send(m.SwitchWorker(endpoints=(one,)))
        another.send(m.SwitchWorker(endpoints=(two,)))
        for channel in (operator, another):
            assert isinstance(channel.receive(PATIENCE_S).message, m.Done)
        until(lambda: daemon.said("worker endpoint changed"), "a change")


@pytest.mark.parametrize(
    "endpoints", [("nonsense",), ("tcp://*:1",), ("ipc:///a", "ipc:///a"), ("tcp://no such host:1",)]
)
def test_an_endpoint_that_is_none_changes_nothing(
    daemon: Daemon, operator: Channel[ToOperator], endpoints: tuple[str, ...]
) -> None:
    answer = ask(operator, m.SwitchWorker(endpoints=endpoints))
    assert isinstance(answer, m.Refused)
    assert answer.code == "endpoint"
    status = ask(operator, m.StatusRequest())
    assert isinstance(status, m.Status)
    assert status.endpoints == (daemon.worker,)


def test_status_tells_of_sessions(daemon: Daemon, operator: Channel[ToOperator]) -> None:
    with Worker(daemon.worker), Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready("the engine"))
        rounds.until(Verdict.OK)

        def told() -> m.SessionStatus | None:
            status = ask(operator, m.StatusRequest())
            assert isinstance(status, m.Status)
            assert (status.pid, status.draining) == (daemon.pid, False)
            (session,) = status.sessions
            return session if session.worker else None

        session: Any = until(told, "the worker's name")
        assert session.session == f"{engine.session:016x}"
        assert (session.engine, session.pid, session.link) == ("the engine", os.getpid(), "up")
        assert (session.worker, session.endpoint, session.breaker) == ("w1", daemon.worker, "closed")
        assert session.round == len(rounds.verdicts)


def test_ctl_prints_the_status(daemon: Daemon) -> None:
    empty = run(daemon, "status")
    assert empty.returncode == ctl.EXIT_NOT_HEALTHY
    assert f"pid {daemon.pid}, serving, NOT HEALTHY" in empty.stdout
    assert "no engine is connected" in empty.stdout
    with Engine(daemon.path) as engine:
        engine.ready("the engine")
        assert "the engine rank 0" in run(daemon, "status").stdout
        status = json.loads(run(daemon, "status", "--json").stdout)
        assert [each["engine"] for each in status["sessions"]] == ["the engine"]


def test_ctl_says_why_it_failed(daemon: Daemon, short_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main([f"--socket={short_dir}/none", "status"]) == ctl.EXIT_UNREACHABLE
    assert "no daemon at" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        ctl.main([f"--socket={daemon.path}", "switch-worker", "nonsense"])
    assert left.value.code == 2
    assert "tcp://HOST:PORT" in capsys.readouterr().err
    assert ctl.main([f"--socket={daemon.path}", "switch-worker", "tcp://no such host:1"]) == 1
    assert "refused (endpoint)" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        ctl.main([])
    assert left.value.code == 2


@pytest.mark.parametrize(
    "message",
    [
        m.Hello(
            protocol=1,
            layout_hash="0" * 16,
            geometry=m.Geometry(row_bytes=8, drafts=1, vocab=2),
            deadline_ms=200,
            model="m",
            engine=m.EngineIdentity(name="e"),
        ),
        m.OperatorHello(protocol=1),
        m.Create(),
        m.Goodbye(),
    ],
)
def test_an_operator_that_says_what_it_must_not(
    daemon: Daemon, operator: Channel[ToOperator], message: m.Message
) -> None:
    with unharmed(daemon):
        answer = ask(operator, message)
        assert isinstance(answer, m.Refused)
        assert answer.code == "order"
        with pytest.raises(ChannelClosed):
            operator.receive(PATIENCE_S)


def test_an_operator_that_sends_nonsense(daemon: Daemon, operator: Channel[ToOperator]) -> None:
    with unharmed(daemon):
        operator.socket.send(b'{"type": "SWITCH_WORKER", "endpoints": [], "more": 1}')
        answer = operator.receive(PATIENCE_S).message
        assert isinstance(answer, m.Refused)
        assert answer.code == "message"


def test_an_engine_is_no_operator(daemon: Daemon) -> None:
    with unharmed(daemon), Engine(daemon.path) as engine:
        engine.ready()
        engine.channel.send(m.SwitchWorker(endpoints=("ipc:///x",)))
        daemon.wait_for("engine sent what has no place in a running session")
        assert not daemon.said("operator switches workers")


def test_who_may_be_an_operator() -> None:
    mine = os.geteuid()
    hello = m.OperatorHello(protocol=m.PROTOCOL_VERSION)
    nobody_else = Admission()
    admit(hello, Peer(pid=1, uid=mine, gid=0), nobody_else)
    admit(hello, Peer(pid=1, uid=0, gid=0), nobody_else)
    admit(hello, Peer(pid=1, uid=mine + 1, gid=0), Admission(operators=frozenset({mine + 1})))
    with pytest.raises(RefusedError, match="only root") as refused:
        admit(hello, Peer(pid=1, uid=mine + 1, gid=0), nobody_else)
    assert refused.value.code == "permission"
    with pytest.raises(RefusedError, match="protocol"):
        admit(m.OperatorHello(protocol=99), Peer(pid=1, uid=mine, gid=0), nobody_else)


def test_operators_that_stay_do_not_hold_an_end_up(daemon: Daemon, operator: Channel[ToOperator]) -> None:
    daemon.process.terminate()
    with pytest.raises(ChannelClosed):
        operator.receive(PATIENCE_S)
    assert daemon.join() == 0
