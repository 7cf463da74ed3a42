# SPDX-License-Identifier: Apache-2.0
"""A self-test whose daemon goes away, or that lacks something of the process: nothing was learned of the device, so it is tried again."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import threading

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from cuda_harness import Cuda, cuda, library
from engine_harness import PATIENCE_S
from proxyd_harness import Daemon, until
from shim_daemon import Daemons, Host
from test_selftest import ROOT, begin, echoed, shim_on, tried

from engine_shim import Batch, DaemonUnreachable, Mode, Session, Ticket
from engine_shim.environment import LIBCUDA
from engine_shim.selftest import release_kept, rounds
from engine_shim.selftest.arena import Arena
from engine_shim.selftest.rounds import NothingLearned, Rounds
from hostflag.region import Word
from hostflag.verdicts import Phase, Skip, Verdict


def gathered(host: Host) -> None:
    host.shake_hands()
    until(lambda: host.on_words.word(Word.GATHERED) >= 1, "the first round is parked")


def dies_at_once(host: Host) -> None:
    host.shake_hands()


def dies(host: Host) -> None:
    gathered(host)


def drains(host: Host) -> None:
    """Decide the first rounds as a daemon does that goes."""
    gathered(host)
    host.on_words.phase(Phase.DRAINING)
    host.on_words.finish(1, Verdict.DRAINING)
    host.over.wait(PATIENCE_S)


def says_that_it_drains(host: Host) -> None:
    """Be drained before the first round."""
    host.take_hello()
    host.welcome()
    host.take_region()
    host.on_words.phase(Phase.DRAINING)
    host.ready()
    host.over.wait(PATIENCE_S)


def is_disconnected(host: Host) -> None:
    gathered(host)
    host.on_words.finish(1, Verdict.DISCONNECTED)
    host.over.wait(PATIENCE_S)


def is_too_late(host: Host) -> None:
    gathered(host)
    host.on_words.finish(1, Verdict.TIMEOUT)
    host.over.wait(PATIENCE_S)


def stops(host: Host) -> None:
    gathered(host)
    host.over.wait(PATIENCE_S)


GONE: Final = "the daemon went away during the self-test, which says nothing of the device: the session "
SCRIPTS: Final = {
    "dies at once": (dies_at_once, f"{GONE}was lost (HANGUP)"),
    "dies": (dies, f"{GONE}was lost (HANGUP)"),
    "drains": (drains, f"{GONE}drains"),
    "says that it drains": (says_that_it_drains, f"{GONE}drains, a step made no round: DRAINING"),
    "is disconnected": (is_disconnected, GONE),
    "is too late": (is_too_late, "round 1 ended TIMEOUT. Is it stopped or overloaded?"),
    "stops": (stops, "round 1 had no answer within 2 s. Is it stopped or overloaded?"),
}


@pytest.mark.parametrize("how", SCRIPTS)
def test_a_daemon_that_goes_away_is_tried_again(short_dir: Path, how: str) -> None:
    script, why = SCRIPTS[how]
    path = short_dir / "e.sock"
    with cuda() as gpu:
        with Daemons(path, [script]):
            shim = begin(gpu, path)
            try:
                status = shim.status()
                assert why in (status.target_only or "")
                assert (status.mode, status.async_refusal, gpu.stream.untried) == (Mode.ASYNC, None, True)
            except BaseException:
                shim.close()
                raise
        try:
            with Daemon(short_dir):
                assert shim.wait_session(PATIENCE_S), shim.status()
                assert (shim.status().mode, shim.status().async_refusal) == (Mode.ASYNC, None)
                echoed(gpu, shim)
        finally:
            shim.close(PATIENCE_S)
        assert gpu.fake.registered == 0
        assert release_kept(), "nothing had to be kept"


def test_what_a_lost_self_test_used_is_given_back(short_dir: Path) -> None:
    with Daemons(short_dir / "e", [dies]), cuda() as gpu:
        before = taken(gpu)
        with pytest.raises(NothingLearned):
            tried(gpu, short_dir / "e")
        assert taken(gpu) == before


def taken(gpu: Cuda) -> tuple[int, ...]:
    """Return how much more of each was taken than given back."""
    calls = gpu.driver.calls()
    pairs = (
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuMemAlloc", "cuMemFree"),
        ("cuMemHostRegister", "cuMemHostUnregister"),
        ("cuStreamCreate", "cuStreamDestroy"),
    )
    return tuple(calls.get(take, 0) - calls.get(give, 0) for take, give in pairs)


def test_a_daemon_killed_beside_other_streams_leaves_nothing(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    park = Rounds._park
    with Daemon(short_dir) as daemon, cuda() as gpu:
        before = taken(gpu)

        def killed(rounds: Rounds) -> None:
            park(rounds)
            daemon.process.kill()

        monkeypatch.setattr(Rounds, "_park", killed)
        with pytest.raises(DaemonUnreachable, match=r"was lost \(HANGUP\), round 1 ended LOST"):
            tried(gpu, daemon.path)
        assert taken(gpu) == before
        assert gpu.stream.untried


def test_a_strict_start_waits_for_the_next_daemon(short_dir: Path) -> None:
    """As it does where there is none."""
    path = short_dir / "e.sock"
    started = threading.Event()
    daemon: list[Daemon] = []

    def restart() -> None:
        with Daemons(path, [dies]) as daemons:
            started.set()
            daemons.host(2)  # two tries have failed
        daemon.append(Daemon(short_dir))

    service = threading.Thread(target=restart)
    with cuda() as gpu:
        service.start()
        try:
            assert started.wait(PATIENCE_S)
            with shim_on(gpu, path, strict=True) as shim:
                assert (shim.status().mode, shim.status().async_refusal) == (Mode.ASYNC, None)
                echoed(gpu, shim)
        finally:
            service.join()
            for one in daemon:
                one.__exit__()


@pytest.mark.parametrize("fault", [OSError(errno.EMFILE, "Too many open files"), MemoryError("none left")])
def test_what_the_process_lacks_is_not_the_devices_fault(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    failed: list[Exception] = []
    stage = Arena.stage

    def short(arena: Arena, number: int) -> list[list[int]]:
        if len(failed) < 2:
            failed.append(fault)
            raise fault
        return stage(arena, number)

    monkeypatch.setattr(Arena, "stage", short)
    with Daemon(short_dir) as daemon, cuda() as gpu:
        before = taken(gpu)
        with pytest.raises(NothingLearned, match="did not get past ordering, which says nothing of the device"):
            tried(gpu, daemon.path)
        assert taken(gpu) == before, "what it had is given back"
        with shim_on(gpu, daemon.path) as shim:
            assert shim.wait_session(PATIENCE_S)
            assert (len(failed), shim.status().mode, shim.status().async_refusal) == (2, Mode.ASYNC, None)
            echoed(gpu, shim)


def test_no_thread_for_it_is_not_the_devices_fault(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[threading.Thread], None] = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "hf-selftest":
            raise RuntimeError("can't start new thread")
        real(thread)

    with cuda() as gpu, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(NothingLearned, match=r"no thread for the self-test: can't start new thread\. Raise"):
            tried(gpu, short_dir / "e")


@pytest.mark.parametrize("how", ["dies", "stops"])
def test_qualify_says_that_the_daemon_went_away(short_dir: Path, how: str) -> None:
    script, why = SCRIPTS[how]
    command = [sys.executable, "-m", "proxyd.operator.ctl", f"--socket={short_dir}/e", "qualify", "--rounds=20"]
    with Daemons(short_dir / "e", [script]):
        ended = subprocess.run(
            [*command, f"--json={short_dir}/report"],
            cwd=ROOT,
            env={**os.environ, LIBCUDA: str(library())},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    assert (ended.returncode, ended.stdout) == (3, ""), "not 1: the device was not refused"
    assert why in ended.stderr
    assert not (short_dir / "report").exists()


def test_a_starved_watchdog_is_of_the_moment(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy at the engine's start makes no engine synchronous for life."""
    calls, submit = itertools.count(), Session.submit
    nothing = Ticket(None, Skip.WATCHDOG, context_rounds=0, first_round=0, rows=0, rows_deferred=0, session=None)

    def starved(session: Session, batch: Batch) -> Ticket:
        return nothing if next(calls) % 40 < 3 else submit(session, batch)

    with Daemon(short_dir) as daemon, cuda() as gpu:
        with monkeypatch.context() as patch:
            patch.setattr(Session, "submit", starved)
            report = tried(gpu, daemon.path)
        assert report.passed, report
        assert next(calls) > 40


def test_a_watchdog_that_stays_starved_says_nothing_of_the_device(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Ticket(None, Skip.WATCHDOG, context_rounds=0, first_round=0, rows=0, rows_deferred=0, session=None)
    with Daemon(short_dir) as daemon, cuda() as gpu, monkeypatch.context() as patch:
        patch.setattr(rounds, "WAIT_S", 0.1)
        patch.setattr(Session, "submit", lambda *_: nothing)
        with pytest.raises(NothingLearned, match="starved"):
            tried(gpu, daemon.path)
