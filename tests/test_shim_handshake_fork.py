# SPDX-License-Identifier: Apache-2.0
"""A child that is forked in the middle of a handshake: it keeps neither the socket nor the region."""

from __future__ import annotations

import contextlib
import os
import threading

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_hand import PATIENCE_S, until
from engine_harness import SMALL
from shim_daemon import Daemons, Host
from shim_harness import shim_with
from test_shim_fork import child, sockets

from engine_shim import SessionOptions, SoftStream, connect, connection, forks, handover
from engine_shim.region import Region
from engine_shim.trust import trusted_uids
from hostflag.messages import EngineIdentity


pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
BASE = 7


def nothing_but(before: set[str]) -> Callable[[], None]:
    def run() -> None:
        assert sockets() <= before, "no end of a session, no region"

    return run


class Stopped:
    """Stands where something is done in another thread; that goes on once it is let."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self.there = threading.Event()
        self.go = threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        done = self._real(*arguments, **named)
        self.there.set()
        assert self.go.wait(PATIENCE_S)
        return done


@contextlib.contextmanager
def connecting(path: Path, stream: SoftStream, options: SessionOptions) -> Iterator[None]:
    """Connect in a thread, as a self-test does; at the end of the block there has to be a session."""
    done = []

    def run() -> None:
        engine = EngineIdentity(name="low")
        connect(
            path, geometry=SMALL, model="t", engine=engine, stream=stream, timeout_s=PATIENCE_S, options=options
        ).close()
        done.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE_S)
    assert done


def test_a_child_of_a_shim_that_waits_for_a_daemons_word(short_dir: Path) -> None:
    let = threading.Event()

    def slow(host: Host) -> None:
        host.take_hello()
        assert let.wait(PATIENCE_S)
        host.welcome()
        host.take_region()
        host.ready()
        host.work()

    with Daemons(short_dir / "e", [slow]) as daemons:
        before = sockets()
        try:
            with shim_with(short_dir / "e", start_timeout_s=0.0, handshake_s=PATIENCE_S) as driver:
                until(lambda: daemons.host(0).hello, "HELLO")
                with child(nothing_but(before), daemons):
                    let.set()
                    driver.session()
                    driver.ok()
        finally:
            let.set()


def test_a_child_of_a_shim_that_has_connected_and_no_more(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Stopped(trusted_uids)
    monkeypatch.setattr(handover, "trusted_uids", stopped)
    with Daemons(short_dir / "e") as daemons:
        before = sockets()
        try:
            with shim_with(short_dir / "e", start_timeout_s=0.0, handshake_s=PATIENCE_S) as driver:
                assert stopped.there.wait(PATIENCE_S)
                daemons.host(0)  # its end is the test's to close in the child: it has to be known before
                with child(nothing_but(before), daemons):
                    stopped.go.set()
                    driver.session()
                    driver.ok()
        finally:
            stopped.go.set()


@pytest.mark.parametrize("base", [0, BASE], ids=["the daemon's region", "its own"])
def test_a_child_of_a_shim_that_registers_a_region(short_dir: Path, monkeypatch: pytest.MonkeyPatch, base: int) -> None:
    """C has duplicated the memfd by then, and nobody knows its number yet."""
    stopped = Stopped(Region)
    monkeypatch.setattr(handover, "Region", stopped)
    with Daemons(short_dir / "e") as daemons:
        before = sockets()
        options = SessionOptions(base=base)
        try:
            with shim_with(short_dir / "e", start_timeout_s=0.0, handshake_s=PATIENCE_S, session=options) as driver:
                assert stopped.there.wait(PATIENCE_S)
                with child(nothing_but(before), daemons):
                    stopped.go.set()
                    driver.session()
                    driver.ok()
        finally:
            stopped.go.set()


@pytest.mark.parametrize("what", ["Region", "Session"])
def test_a_child_of_a_connect(short_dir: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The self-test's connections are made like this one. A session's watchdog has a duplicate of the socket."""
    stopped = Stopped(getattr(connection, what))
    monkeypatch.setattr(connection, what, stopped)
    with Daemons(short_dir / "e") as daemons, SoftStream() as stream:
        before = sockets()
        with connecting(short_dir / "e", stream, SessionOptions()):
            try:
                assert stopped.there.wait(PATIENCE_S)
                with child(nothing_but(before), daemons):
                    pass
            finally:
                stopped.go.set()


def test_a_fork_waits_for_what_is_not_noted_yet() -> None:
    forking = threading.Event()
    noted: list[int] = []
    seen: list[int] = []

    def fork() -> None:
        forking.set()
        pid = os.fork()
        if pid == 0:
            os._exit(len(noted))
        seen.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    thread = threading.Thread(target=fork)
    with forks.no_fork():
        thread.start()
        assert forking.wait(PATIENCE_S)
        thread.join(0.05)  # longer than a fork that does not wait takes
        noted.append(1)
    thread.join(PATIENCE_S)
    assert seen == [1]


def test_a_handler_may_fork_in_the_middle_of_it() -> None:
    with forks.no_fork():
        pid = os.fork()
        if pid == 0:
            with forks.no_fork():
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    with forks.no_fork():
        pass
