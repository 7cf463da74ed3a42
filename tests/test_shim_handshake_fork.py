# SPDX-License-Identifier: Apache-2.0
"""A child that is forked in the middle of a handshake: it keeps neither the socket nor the region."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_hand import PATIENCE_S, until
from engine_harness import SMALL
from shim_daemon import Daemons, Host, silent
from shim_harness import shim_with
from test_shim_fork import ROOT, child, sockets

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


def forked_while_it_stands(short_dir: Path, stopped: Stopped, base: int = 0) -> None:
    """Fork while the keeper stands at ``stopped``: the child keeps nothing, and the shim goes on."""
    with Daemons(short_dir / "e") as daemons:
        before = sockets()
        options = SessionOptions(base=base)
        try:
            with shim_with(short_dir / "e", start_timeout_s=0.0, handshake_s=PATIENCE_S, session=options) as driver:
                assert stopped.there.wait(PATIENCE_S)
                daemons.host(0)  # its end is the test's to close in the child: it has to be known before
                with child(nothing_but(before), daemons):
                    stopped.go.set()
                    driver.session()
                    driver.ok()
        finally:
            stopped.go.set()


def test_a_child_of_a_shim_that_has_connected_and_no_more(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Stopped(trusted_uids)
    monkeypatch.setattr(handover, "trusted_uids", stopped)
    forked_while_it_stands(short_dir, stopped)


@pytest.mark.parametrize("base", [0, BASE], ids=["the daemon's region", "its own"])
def test_a_child_of_a_shim_that_registers_a_region(short_dir: Path, monkeypatch: pytest.MonkeyPatch, base: int) -> None:
    """C has duplicated the memfd by then, and nobody knows its number yet."""
    stopped = Stopped(Region)
    monkeypatch.setattr(handover, "Region", stopped)
    forked_while_it_stands(short_dir, stopped, base)


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


# Hooks of C round about the fork's own: a signal's handler runs at the next bytecode, wherever that is.
LOCKED = """
import contextlib, ctypes, functools, logging, os, signal, threading  # logging: its hooks, of Python, are outside these
found, raised = [], []
def look():
    def take():
        found.append(forks._forking.acquire(blocking=False))
        if found[-1]:
            forks._forking.release()
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
os.register_at_fork(before=look, after_in_parent=functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGUSR1))
from engine_shim import forks
class Raised(BaseException):
    pass
def handler(*_):
    raised.append(True)
    raise Raised
signal.signal(signal.SIGUSR1, handler)
with contextlib.suppress(Raised):
    if os.fork() == 0:
        os._exit(0)
    while not raised:
        pass
assert os.wait()[1] == 0
look()
print(found)
"""


def test_a_fork_has_the_lock_and_no_signal_leaves_it_held() -> None:
    """Told by the lock itself: that a thread waits for it cannot be seen, only that it is not through yet."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOCKED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[False, True]\n", "")


def test_what_was_on_its_way_in_a_try_that_failed_is_no_longer(short_dir: Path) -> None:
    """By its number and file it could be another's by then: and the fault, which is kept, has all of the try in its traceback."""
    with (
        Daemons(short_dir / "e", [silent]),
        shim_with(short_dir / "e", start_timeout_s=PATIENCE_S, handshake_s=0.05, backoff_ms=(1e6, 1e6)) as driver,
    ):
        assert driver.shim._keeper.fault is not None
        assert not [each for each in forks._passing if each.files]


def test_a_handler_may_fork_in_the_middle_of_it() -> None:
    with forks.no_fork():
        pid = os.fork()
        if pid == 0:
            with forks.no_fork():
                os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    with forks.no_fork():
        pass
