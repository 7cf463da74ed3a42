# SPDX-License-Identifier: Apache-2.0
"""A shim from its first moment to its last: with a daemon, before there is one, and with ones that say nothing."""

from __future__ import annotations

import logging
import os
import threading
import time

from pathlib import Path

import pytest

from engine_hand import PATIENCE_S, until
from engine_harness import SMALL
from engine_peer import held
from shim_daemon import Daemons, Host, serving, silent
from shim_harness import shim_with

from engine_shim import (
    ConnectionRefusedByDaemon,
    DaemonUnreachable,
    HandshakeFailed,
    SessionClosed,
    Shim,
    ShimOptions,
    SoftStream,
)
from hostflag import messages as m
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Skip, Verdict


def test_a_shim_drafts(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        ticket, verdict, out = driver.step()
        assert (ticket.session, ticket.round, verdict) == (0x1000, 1, Verdict.OK)
        assert out == [[7, 8, 9]]
        status = driver.shim.status()
        assert (status.session, status.target_only, status.sessions, status.losses) == (0x1000, None, 1, {})
        assert (status.registrations, status.regions.in_use, status.regions.free) == (1, 1, 0)
        assert daemons.host(0).base is None
    closed = driver.shim.status()
    assert closed.rounds["OK"] == 1


def test_before_there_is_a_daemon_steps_are_target_only_and_then_they_are_not(short_dir: Path) -> None:
    with shim_with(short_dir / "e") as driver:
        ticket, _, out = driver.step()
        assert (ticket.round, ticket.skip, ticket.session, ticket.refs) == (None, Skip.NO_SESSION, None, [])
        assert out == [[0, 0, 0]], "legal, and not what was there"
        status = driver.shim.status()
        assert "no daemon" in (status.target_only or "")
        assert (status.skipped["NO_SESSION"], status.rows_left_out) == (1, 1)
        with Daemons(short_dir / "e"):
            driver.session()
            driver.ok()


def test_a_strict_start_without_a_daemon_raises_and_leaves_nothing(short_dir: Path) -> None:
    before = held()
    with SoftStream() as stream:
        began = time.monotonic()
        with pytest.raises(DaemonUnreachable):
            strict(short_dir / "e", stream)
        assert time.monotonic() - began >= 0.3
    assert held() == before
    assert not [thread for thread in threading.enumerate() if thread.name == "hf-keeper"]


@pytest.mark.parametrize(("script", "kind"), [("refuse", ConnectionRefusedByDaemon), ("silent", HandshakeFailed)])
def test_a_strict_start_says_why(short_dir: Path, script: str, kind: type[Exception]) -> None:
    def refuse(host: Host) -> None:
        host.take_hello()
        host.channel.send(m.Refused(code="model", reason="another model"))

    scripts = {"refuse": refuse, "silent": silent}
    with (
        Daemons(short_dir / "e", [scripts[script]]),
        SoftStream() as stream,
        pytest.raises(kind),
    ):
        strict(short_dir / "e", stream)


def strict(path: Path, stream: SoftStream) -> Shim:
    options = ShimOptions(strict=True, start_timeout_s=0.3)
    return Shim(path, geometry=SMALL, model="test", engine=EngineIdentity(name="e"), stream=stream, options=options)


def test_a_close_while_the_daemon_says_nothing_does_not_wait_for_it(short_dir: Path) -> None:
    with Daemons(short_dir / "e", [silent]) as daemons, SoftStream() as stream:
        options = ShimOptions(start_timeout_s=0.05, handshake_s=60.0)
        engine = EngineIdentity(name="e")
        shim = Shim(short_dir / "e", geometry=SMALL, model="test", engine=engine, stream=stream, options=options)
        daemons.host(0)
        assert shim.session is None
        began = time.monotonic()
        shim.close(30.0)
        assert time.monotonic() - began < 5.0


def test_a_daemon_that_says_nothing_is_tried_again(short_dir: Path) -> None:
    """HELLOs that are queued at a stopped daemon do no harm: no region goes with them."""
    with (
        Daemons(short_dir / "e", [silent, silent, serving]) as daemons,
        shim_with(short_dir / "e", handshake_s=0.1) as driver,
    ):
        driver.session()
        driver.ok()
        assert daemons.host(2).base is None
        assert driver.shim.status().registrations == 1
        for host in daemons.hosts[:2]:
            assert isinstance(host.channel.receive(PATIENCE_S).message, m.Hello)
            assert host.channel.socket.recv(1) == b"", "the shim has closed it"


def test_closing_is_final_and_twice_is_harmless(short_dir: Path) -> None:
    with Daemons(short_dir / "e"), shim_with(short_dir / "e") as driver:
        ref = driver.ok().ref
        assert ref
        driver.shim.close()
        driver.shim.close()
        assert driver.shim.closed
        assert driver.shim.status().rounds["OK"] == 1
        with pytest.raises(SessionClosed):
            driver.shim.submit(driver.batch)
        with pytest.raises(SessionClosed):
            driver.shim.verdict(ref)


def test_the_daemon_is_told_goodbye(short_dir: Path) -> None:
    farewell: list[str] = []

    def script(host: Host) -> None:
        host.shake_hands()
        farewell.append(type(host.channel.receive(PATIENCE_S).message).__name__)

    with Daemons(short_dir / "e", [script]), shim_with(short_dir / "e") as driver:
        driver.session()
    assert farewell == ["Goodbye"]


def test_two_shims_in_one_process(short_dir: Path) -> None:
    with (
        Daemons(short_dir / "a") as first,
        Daemons(short_dir / "b"),
        shim_with(short_dir / "a", name="a") as one,
        shim_with(short_dir / "b", name="b") as other,
    ):
        one.ok()
        other.ok()
        first.host(0).die()
        one.lost()
        before = other.shim.status()
        other.ok()
        assert (before.losses, other.shim.status().losses) == ({}, {})
        one.session()
        one.ok()
        assert one.shim.status().losses == {"HANGUP": 1}


def test_one_line_for_each_change_of_state(short_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="engine_shim")

    def said() -> list[str]:
        return [record.getMessage().split(" ")[0] for record in caplog.records if record.name == "engine_shim"]

    with shim_with(short_dir / "e") as driver:
        until(lambda: driver.shim._keeper.tries >= 3, "three tries")
        assert said() == ["target-only:"]
        with Daemons(short_dir / "e") as daemons:
            driver.session()
            driver.ok()
            daemons.host(0).die()
            driver.lost()
            driver.session()
            assert said() == ["target-only:", "session", "session", "session"]


def test_hints_reach_the_daemon(short_dir: Path) -> None:
    with (
        Daemons(short_dir / "e") as daemons,
        shim_with(short_dir / "e", spin_us=30.0, nap_us=10.0, deadline_ms=300.0) as driver,
    ):
        driver.session()
        hello = daemons.host(0).hello
        assert hello
        assert (hello.spin_us, hello.nap_us, hello.deadline_ms, hello.engine.pid) == (30.0, 10.0, 300.0, os.getpid())
