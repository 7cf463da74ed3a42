# SPDX-License-Identifier: Apache-2.0
"""A shim that is closed while its stream is tried: the self-test ends, whatever it waits for, or it is said what holds it up."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cuda_harness import Cuda, cuda
from engine_harness import PATIENCE_S
from proxyd_harness import until
from shim_daemon import Daemons, Host, Script, serving, silent
from test_selftest import begin
from test_selftest_daemon import gathered, taken

from engine_shim import HandshakeFailed, Mode, Shim, StreamStuck, connect
from engine_shim.selftest import release_kept, rounds, run
from engine_shim.selftest.rounds import Rounds


LONG_S: Final = 2 * PATIENCE_S
LIMITS: Final = {"self_test_s": LONG_S, "handshake_s": LONG_S}


def stops(host: Host) -> None:
    """Leave the first round parked."""
    gathered(host)
    host.over.wait(PATIENCE_S)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait of the self-test ends by itself."""
    monkeypatch.setattr(rounds, "WAIT_S", LONG_S)
    monkeypatch.setattr("engine_shim.selftest.run.connect", functools.partial(connect, timeout_s=LONG_S))
    monkeypatch.setattr(run, "DEADLINE_MS", LONG_S * 1e3)


def host_side(gpu: Cuda) -> tuple[int, ...]:
    """Return what is taken and not given back, but for device memory: a shim's goes back with its stream."""
    pinned, _, *others = taken(gpu)
    return pinned, *others


def trying() -> bool:
    return any(thread.name in {"hf-selftest", "hf-keeper"} for thread in threading.enumerate())


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("script", [silent, stops], ids=["WELCOME", "an answer"])
def test_close_ends_a_self_test_that_waits_for_the_daemon(
    short_dir: Path, caplog: pytest.LogCaptureFixture, script: Script
) -> None:
    caplog.set_level(logging.INFO, logger="engine_shim")
    with Daemons(short_dir / "e", [script]) as daemons, cuda() as gpu:
        before = host_side(gpu)
        shim = begin(gpu, short_dir / "e", start_timeout_s=0.05, **LIMITS)
        daemons.host(0)
        if script is stops:
            gpu.parks()
        shim.close(PATIENCE_S)
        assert not trying()
        assert (shim.status().mode, gpu.stream.async_refusal, gpu.stream.untried) == (Mode.ASYNC, None, True)
        assert host_side(gpu) == before
        assert release_kept(), "nothing had to be kept"
        assert not [one for one in caplog.records if one.name == "engine_shim"], "nothing was found out"


@pytest.mark.usefixtures("patient")
def test_close_ends_a_self_test_whose_other_streams_wait(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rounds, "prove", lambda *_: "")
    with Daemons(short_dir / "e", [serving, stops]) as daemons, cuda() as gpu:
        before = host_side(gpu)
        gpu.fake.queues(1)  # all others stand still behind the parked one
        shim = begin(gpu, short_dir / "e", start_timeout_s=0.05, **LIMITS)
        daemons.host(1)
        gpu.parks()
        shim.close(PATIENCE_S)
        assert not trying()
        assert host_side(gpu) == before
        assert release_kept()
        assert gpu.stream.untried


def test_where_the_bell_rang_a_stuck_device_is_kept_and_not_judged(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had less time than it is given."""
    with Daemons(short_dir / "e", [stops]) as daemons, cuda() as gpu:
        gpu.fake.stick(on=True)
        shim = begin(gpu, short_dir / "e", start_timeout_s=0.05)
        daemons.host(0)
        gpu.parks()
        shim.close(PATIENCE_S)
        assert not trying()
        assert (gpu.stream.async_refusal, gpu.stream.untried) == (None, True)
        assert not release_kept()
        gpu.fake.stick(on=False)
        assert release_kept()
        assert gpu.fake.registered == 0


@contextlib.contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hold up the self-test in its first rounds, as a driver's call would that does not return."""
    go_on = threading.Event()

    def prove(_rounds: Rounds, count: int) -> str:
        assert go_on.wait(PATIENCE_S)
        return str(count)

    with monkeypatch.context() as patch:
        patch.setattr(Rounds, "prove", prove)
        try:
            yield
        finally:
            go_on.set()
            until(lambda: not trying(), "it ends after all")


def test_a_close_that_cannot_end_the_self_test_says_what_that_is_at(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Daemons(short_dir / "e"), cuda() as gpu:
        with held_up(monkeypatch):
            shim = begin(gpu, short_dir / "e", start_timeout_s=0.05, **LIMITS)
            until(lambda: shim._trial.doing and "ordering" in shim._trial.doing, "its rounds")
            with pytest.raises(StreamStuck) as raised:
                shim.close(0.05)
        said = "the keeper did not end in time: it is trying the stream (self-test, at: ordering)"
        assert str(raised.value) == said
        shim.close(PATIENCE_S)
        assert shim.closed


# ---- a strict start ----


@pytest.fixture
def under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strict start's time begins once the keeper is trying the stream."""
    first_session = Shim.first_session

    def wait(shim: Shim, timeout_s: float) -> None:
        until(lambda: shim._trial.doing, "the self-test")
        first_session(shim, timeout_s)

    monkeypatch.setattr(Shim, "first_session", wait)


@pytest.mark.usefixtures("patient", "under_way")
def test_a_strict_start_says_what_it_promised_and_leaves_nothing(short_dir: Path) -> None:
    with Daemons(short_dir / "e", [silent]), cuda() as gpu:
        before = host_side(gpu)
        with pytest.raises(HandshakeFailed, match=r"no session within 0\.2 s: the keeper is trying the stream"):
            begin(gpu, short_dir / "e", strict=True, start_timeout_s=0.2, **LIMITS)
        assert not trying()
        assert host_side(gpu) == before


@pytest.mark.usefixtures("under_way")
def test_a_strict_start_whose_self_test_hangs_says_what_it_promised(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Shim, "close", functools.partialmethod(Shim.close, 0.05))
    with Daemons(short_dir / "e"), cuda() as gpu:
        with held_up(monkeypatch):
            with pytest.raises(HandshakeFailed, match=r"no session within 0\.3 s: the keeper is trying the stream"):
                begin(gpu, short_dir / "e", strict=True, start_timeout_s=0.3, **LIMITS)
            (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
            assert "what did not start cannot be taken down" in record.getMessage()
            assert not release_kept(), "its keeper is still there"
        assert release_kept()
        gpu.stream.close(PATIENCE_S)  # nothing is on it
