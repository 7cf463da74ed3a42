# SPDX-License-Identifier: Apache-2.0
"""/healthz and status: not healthy where no drafts can be had, with the reason; healthy again by itself."""

from __future__ import annotations

import ctypes
import json
import os
import urllib.error
import urllib.request

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from proxyd_engine import Engine, connect
from proxyd_harness import PATIENCE_S, Daemon, until
from proxyd_worker import Rounds, Worker, friendly

from hostflag import messages as m
from hostflag.channel import operator_end
from hostflag.region import Word
from hostflag.verdicts import Verdict
from hostflag.wire import Kind
from proxyd.views.health import MOST_REASONS, Facts, SessionFacts, assess


SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17  # ptrace requests
WALL: Final = 0x40000000
NO_WORKER: Final = SessionFacts(name="e", trouble="no worker", stalled=None)
SERVED: Final = SessionFacts(name="f", trouble=None, stalled=None)


def facts(**changes: Any) -> Facts:
    fields: dict[str, Any] = {"draining": None, "endpoints": ["ipc:///w"], "answers": True, "sessions": []}
    return Facts(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"answers": None}, "not known yet whether a worker answers at ipc:///w"),
        ({"answers": False}, "no worker answers at ipc:///w: start one there, or name another"),
        ({"answers": False, "faults": {"ipc:///w": "keys"}}, "no link to ipc:///w: keys"),
        ({"draining": "an update"}, "draining: an update"),
        ({"sessions": [NO_WORKER]}, "e: no worker"),
        ({"sessions": [SessionFacts(name="g", trouble=None, stalled="stands still"), SERVED]}, "g: stands still"),
    ],
)
def test_what_is_not_healthy(changes: dict[str, Any], reason: str) -> None:
    assert assess(facts(**changes)).reasons == (reason,)


def test_endpoints_that_do_not_answer_and_those_that_cannot_be_asked() -> None:
    health = assess(facts(endpoints=["ipc:///a", "ipc:///b"], answers=False, faults={"ipc:///b": "keys"}))
    assert health.reasons == (
        "no link to ipc:///b: keys",
        "no worker answers at ipc:///a: start one there, or name another",
    )


def test_what_is_healthy_and_worth_a_note() -> None:
    assert assess(facts()).notes == ("no engine is connected",)
    health = assess(facts(answers=False, sessions=[NO_WORKER, SERVED]))
    assert (health.healthy, health.notes) == (True, ("e: no worker",))


def test_many_reasons_fit_a_message() -> None:
    sessions = [SessionFacts(name="n" * 400, trouble="t" * 400, stalled="s" * 400) for _ in range(40)]
    health = assess(facts(draining="d" * 400, sessions=sessions))
    assert len(health.reasons) == MOST_REASONS + 1
    assert all(len(each) <= 256 for each in health.reasons)


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir) as running:
        yield running


def healthz(daemon: Daemon) -> tuple[int, dict[str, Any]]:
    url = daemon.said("ready")[0]["metrics"].replace("/metrics", "/healthz")
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as fault:
        with fault:
            return fault.code, json.load(fault)


def until_ill(daemon: Daemon, text: str) -> None:
    until(
        lambda: healthz(daemon)[0] == 503 and text in " ".join(healthz(daemon)[1]["reasons"]),
        f"503 with {text!r}, last seen {healthz(daemon)}",
    )


def until_well(daemon: Daemon) -> None:
    until(lambda: healthz(daemon)[0] == 200, f"200, last seen {healthz(daemon)}")


def status_of(daemon: Daemon) -> m.Status:
    with operator_end(connect(daemon.path)) as channel:
        for request in (m.OperatorHello(protocol=m.PROTOCOL_VERSION), m.StatusRequest()):
            channel.send(request)
            answer = channel.receive(PATIENCE_S).message
    assert isinstance(answer, m.Status)
    return answer


def test_a_newcomers_daemon_says_what_it_waits_for(daemon: Daemon) -> None:
    """No configuration, no worker, no engine."""
    assert daemon.wait_for("no worker answers, waiting for one")["endpoints"] == [daemon.worker]
    until_ill(daemon, f"no worker answers at {daemon.worker}")
    status = status_of(daemon)
    assert not status.healthy
    assert status.notes == ("no engine is connected",)
    with Worker(daemon.worker):
        daemon.wait_for("a worker answers")
        until_well(daemon)
        assert status_of(daemon).healthy
    daemon.wait_for("no worker answers, waiting for one", 2)
    until_ill(daemon, "no worker answers")


def test_a_worker_that_accepts_and_says_nothing_is_none(daemon: Daemon) -> None:
    with Worker(daemon.worker, lambda _worker, _parts, _header: None):
        daemon.wait_for("no worker answers, waiting for one")
        until_ill(daemon, "no worker answers")


def test_looks_for_a_worker_leave_nothing_behind(daemon: Daemon) -> None:
    daemon.wait_for("no worker answers, waiting for one")
    held = daemon.resources()
    with Worker(daemon.worker):
        daemon.wait_for("a worker answers")
    daemon.wait_for("no worker answers, waiting for one", 2)
    daemon.back_to(held)


def test_every_session_without_a_worker(daemon: Daemon, short_dir: Path) -> None:
    with Engine(daemon.path) as engine:
        engine.ready("the engine")
        until_ill(daemon, f"the engine rank 0: no worker (link connecting at {daemon.worker})")
        with Worker(daemon.worker):
            until_well(daemon)
            assert healthz(daemon)[1]["sessions"] == 1
        until_ill(daemon, "the engine rank 0: no worker")


def test_a_worker_that_fails_every_round(short_dir: Path) -> None:
    """The link is up and the breaker open: no drafts, so not healthy."""

    def opens_only(worker: Worker, parts: list[bytes], header: Any) -> None:
        if header.kind is not Kind.ROUND:
            friendly(worker, parts, header)

    with (
        Daemon(short_dir, "--network-timeout-ms=20", "--breaker-cool-ms=4000") as daemon,
        Worker(daemon.worker, opens_only),
        Engine(daemon.path) as engine,
    ):
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.BREAKER)
        until_ill(daemon, "the circuit breaker is open")


def test_a_gathered_round_that_nobody_takes(daemon: Daemon) -> None:
    with Worker(daemon.worker), Engine(daemon.path) as engine:
        Rounds(engine.ready("the engine")).until(Verdict.OK)
        until_well(daemon)
        t = engine.word(Word.RETIRED)
        engine.set_words(gathered=t + 1)  # and submitted says that there is none
        until_ill(daemon, "the engine rank 0: a gathered round has waited for")
        assert daemon.wait_for("session stalled")["level"] == "error"
        assert engine.round(t + 1) is Verdict.OK
        until_well(daemon)
        daemon.wait_for("session moves again")
        daemon.exactly("session stalled", 1)


class Held:
    """One thread of the daemon, held as by a debugger; the others run."""

    def __init__(self, daemon: Daemon, name: str) -> None:
        tasks = Path(f"/proc/{daemon.pid}/task")
        (self.tid,) = (int(task.name) for task in tasks.iterdir() if (task / "comm").read_text().strip() == name)
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._ptrace(SEIZE) < 0:
            pytest.skip(f"no right to hold a thread: ptrace: {os.strerror(ctypes.get_errno())}")
        assert self._ptrace(INTERRUPT) == 0
        os.waitpid(self.tid, WALL)

    def let_go(self) -> None:
        assert self._ptrace(DETACH) == 0

    def _ptrace(self, request: int) -> int:
        return int(self._libc.ptrace(request, self.tid, None, None))


def test_a_loop_that_stands_still(daemon: Daemon) -> None:
    with Worker(daemon.worker), Engine(daemon.path) as engine, Engine(daemon.path) as other:
        Rounds(engine.ready("the engine")).until(Verdict.OK)
        held = Held(daemon, "hfd-round")
        try:
            until_ill(daemon, "the engine rank 0: the round loop has not moved for")
            assert [each.beating for each in status_of(daemon).sessions] == [False]
            Rounds(other.ready("another")).until(Verdict.OK)  # others are not harmed
        finally:
            held.let_go()
        until_well(daemon)


def test_draining_is_not_healthy(daemon: Daemon) -> None:
    with Worker(daemon.worker), operator_end(connect(daemon.path)) as channel:
        until_well(daemon)
        for request in (m.OperatorHello(protocol=m.PROTOCOL_VERSION), m.Drain(reason="an update")):
            channel.send(request)
            assert isinstance(channel.receive(PATIENCE_S).message, m.Done)
        assert healthz(daemon)[0] == 503
        assert healthz(daemon)[1]["reasons"] == ["draining: an update"]
        channel.send(m.Resume())
        assert isinstance(channel.receive(PATIENCE_S).message, m.Done)
        assert healthz(daemon)[0] == 200
