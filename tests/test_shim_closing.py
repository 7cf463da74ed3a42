# SPDX-License-Identifier: Apache-2.0
"""Closes that meet: of two threads, of a signal's handler in the middle of one, of an interpreter that ends beside threads that submit."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
import threading

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine_hand import PATIENCE_S, until
from engine_harness import FakeDaemon, engine
from shim_daemon import Daemons
from shim_harness import shim_with
from test_shim_fork import ROOT, SCRIPT, STUCK

from engine_shim import Session, Shim, StreamStuck
from engine_shim.status import SessionStatus


class Held:
    """Sessions whose end waits for ``go_on``. ``inside``: how many threads are in one now; ``most``: were, ever; ``times``: in all."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.inside = self.most = self.times = 0
        self.on_signal: Callable[[], None] = lambda: None
        self._end = Session.end

    def end(self, session: Session, timeout_s: float) -> SessionStatus:
        self.inside += 1
        self.times += 1
        self.most = max(self.most, self.inside)
        try:
            self.on_signal()
            assert self.go_on.wait(PATIENCE_S)
            return self._end(session, timeout_s)
        finally:
            self.inside -= 1


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    one = Held()
    monkeypatch.setattr(Session, "end", lambda session, timeout_s: one.end(session, timeout_s))
    yield one
    one.go_on.set()


@contextlib.contextmanager
def opened(directory: Path, kind: str) -> Iterator[Shim | Session]:
    """Give what is to be closed."""
    if kind == "session":
        with FakeDaemon(directory) as daemon, engine(daemon) as (session, _, _):
            yield session
        return
    with Daemons(directory / "e"), shim_with(directory / "e") as driver:
        driver.ok()
        yield driver.shim


KINDS = pytest.mark.parametrize("kind", ["shim", "session"])


class Closer:
    """Closes in a thread of its own. ``fault``: what that raised."""

    def __init__(self, one: Shim | Session, timeout_s: float = PATIENCE_S) -> None:
        self.fault: BaseException | None = None
        self._thread = threading.Thread(target=self._close, args=(one, timeout_s))
        self._thread.start()

    def _close(self, one: Shim | Session, timeout_s: float) -> None:
        try:
            one.close(timeout_s)
        except BaseException as fault:  # noqa: BLE001 - the test's to judge
            self.fault = fault

    def join(self) -> None:
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive()


@KINDS
def test_a_second_thread_does_not_close_what_is_being_closed(short_dir: Path, held: Held, kind: str) -> None:
    with opened(short_dir, kind) as one:
        first = Closer(one)
        until(lambda: held.inside, "the first is in the middle of it")
        with pytest.raises(StreamStuck, match="another thread is closing it"):
            one.close(0.05)
        assert (held.most, one.closed) == (1, False)
        held.go_on.set()
        first.join()
        assert first.fault is None
        assert one.closed
        one.close(0.0)
        assert held.times == 1


@KINDS
def test_a_second_thread_waits_for_the_first_and_finds_it_done(short_dir: Path, held: Held, kind: str) -> None:
    with opened(short_dir, kind) as one:
        closers = [Closer(one), Closer(one)]
        until(lambda: held.inside, "one is in the middle of it")
        held.go_on.set()
        for closer in closers:
            closer.join()
            assert closer.fault is None
        assert (held.most, held.times, one.closed) == (1, 1, True)


@KINDS
def test_a_handler_that_closes_what_it_interrupts_the_close_of_is_told_so(
    short_dir: Path, held: Held, kind: str
) -> None:
    said: list[StreamStuck] = []
    with opened(short_dir, kind) as one:

        def handler(*_: object) -> None:
            with pytest.raises(StreamStuck, match="this thread is closing it already") as raised:
                one.close(10 * PATIENCE_S)  # and does not wait for itself
            said.append(raised.value)
            held.go_on.set()

        held.on_signal = lambda: signal.raise_signal(signal.SIGUSR1)
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            one.close(PATIENCE_S)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(said) == 1
        assert (held.most, held.times, one.closed) == (1, 1, True)


@KINDS
def test_a_close_that_a_handler_ends_can_be_done_again(short_dir: Path, held: Held, kind: str) -> None:
    """By whichever thread."""

    def interrupt() -> None:
        held.on_signal = lambda: None
        raise KeyboardInterrupt

    with opened(short_dir, kind) as one:
        held.go_on.set()
        held.on_signal = interrupt
        with pytest.raises(KeyboardInterrupt):
            one.close(PATIENCE_S)
        other = Closer(one)
        other.join()
        assert other.fault is None
        assert one.closed


# ---- at the interpreter's end ----


def test_a_lost_session_that_is_stuck_keeps_no_good_one_from_its_goodbye(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    leave = Session.leave
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok().session

        def stuck(session: Session, timeout_s: float) -> None:
            left.append(session.id)
            if session.id == first:
                raise StreamStuck("it does not move")
            leave(session, timeout_s)

        with monkeypatch.context() as patch:
            patch.setattr(Session, "reap", lambda _: False)  # the stream is never past it
            patch.setattr(Session, "leave", stuck)
            daemons.host(0).die()
            second = driver.session(other_than=first)
            driver.ok()
            with pytest.raises(StreamStuck, match="it does not move"):
                driver.shim.leave(PATIENCE_S)
        assert left == [second, first], "it has the whole of the time"
        until(lambda: not daemons._threads[1].is_alive(), "the daemon sees it gone")
        assert daemons.host(1).goodbye


def test_one_in_use_that_is_stuck_says_no_goodbye(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its daemon would give the region up, which the stream still comes to."""

    def stuck(_session: Session, _timeout_s: float) -> None:
        raise StreamStuck("it does not move")

    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        driver.ok()
        with monkeypatch.context() as patch:
            patch.setattr(Session, "leave", stuck)
            with pytest.raises(StreamStuck):
                driver.shim.leave(PATIENCE_S)
        assert not daemons.host(0).goodbye
        driver.shim.leave(PATIENCE_S)
        until(lambda: daemons.host(0).goodbye, "it can be left again")


LATE = """
import atexit, sys
def late():  # registered before the engine's own: run after it
    do_late()
    print("late", flush=True)
atexit.register(late)
"""
# A thread in the middle of a submit has what it needs in its hands, and goes on whatever Python is at.
IN_A_CALL = """
session = shim._seat.take()
submit, handle, ticket = session._submit, session._open(), session._ticket
def do_late():
    for _ in range(100):
        assert submit(handle, batch.c, ticket) == 0
        assert (ticket.drafting, ticket.skip) == (0, 1), ticket.skip
    stream.wait(stream.marker(), 10)
"""
SUBMITS = """
def do_late():
    for _ in range(100):
        assert shim.submit(batch).skip.name == "NO_SESSION"
    assert shim.status().target_only == "the process ends"
    assert shim.status().sessions == 1
"""
CLOSES = """
def do_late():
    shim.close()
    stream.close()
    assert (shim.closed, shim.status().current, shim.status().rounds["OK"]) == (True, None, 1), shim.status()
"""
# One step of zeros, which the fake daemon answers.
STEP = STUCK.replace("stream.work(1_000_000_000_000)\n", "").replace("assert shim.submit(batch).round == 1\n", "") + (
    "ref = shim.submit(batch).ref\nstream.wait(stream.marker(), 10)\nassert shim.verdict(ref).name == 'OK'\n"
)
THREAD = """
import threading
def submitting():
    while True:
        shim.submit(batch)
threading.Thread(target=submitting, daemon=True).start()
threading.Event().wait(0.05)
"""
# The closing thread is behind work of the stream when the interpreter comes to its end.
CLOSING = """
import threading
stream.work(50_000_000)
shim.submit(batch)
threading.Thread(target=shim.close, args=(20.0,), daemon=True).start()
while not shim._closing._inside.locked() and not shim.closed:
    threading.Event().wait(0.001)
"""


def ended(path: Path, *parts: str) -> subprocess.CompletedProcess[str]:
    code = "".join(textwrap.dedent(part) for part in parts)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-X", "faulthandler", "-c", code, str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "what", [IN_A_CALL, SUBMITS, CLOSES], ids=["a call under way", "the next step", "a late close"]
)
def test_at_the_end_nothing_goes_away_under_who_still_uses_it(short_dir: Path, what: str) -> None:
    with Daemons(short_dir / "e") as daemons:
        end = ended(short_dir / "e", LATE, SCRIPT, STEP, what)
        assert (end.returncode, end.stdout, end.stderr) == (0, "late\n", "")
        until(lambda: not daemons._threads[0].is_alive(), "the daemon sees it gone")
        assert daemons.host(0).goodbye


@pytest.mark.parametrize("what", [THREAD, CLOSING], ids=["submits", "closes"])
def test_an_interpreter_ends_beside_a_thread(short_dir: Path, what: str) -> None:
    with Daemons(short_dir / "e") as daemons:
        end = ended(short_dir / "e", SCRIPT, STEP, what)
        assert (end.returncode, end.stderr) == (0, "")
        until(lambda: not daemons._threads[0].is_alive(), "the daemon sees it gone")
        assert daemons.host(0).goodbye
