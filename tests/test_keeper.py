# SPDX-License-Identifier: Apache-2.0
"""A keeper goes on, whatever a try or a daemon throws at it; and a shim that does not come to be leaves nothing behind."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_hand import until
from engine_harness import SMALL
from engine_peer import held
from shim_daemon import Daemons, Host, serving
from shim_harness import Driver, shim_with

from engine_shim import DaemonUnreachable, HandshakeFailed, Shim, ShimError, ShimOptions, SoftStream, keeper
from engine_shim._engine import ffi
from engine_shim.handover import Handover
from engine_shim.pool import Pool
from engine_shim.record import record_of
from hostflag import messages as m
from hostflag.messages import EngineIdentity
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict


def failing(real: Callable[..., Any], fault: Exception, until_set: threading.Event) -> Callable[..., Any]:
    """Return ``real``, but what raises in the keeper's thread until the event is set."""

    def call(*arguments: Any, **named: Any) -> Any:
        if threading.current_thread().name == "hf-keeper" and not until_set.is_set():
            raise fault
        return real(*arguments, **named)

    return call


def tried(driver: Driver, times: int) -> None:
    before = driver.shim._keeper.tries
    until(lambda: driver.shim._keeper.tries >= before + times, f"{times} tries")


def said(caplog: pytest.LogCaptureFixture, what: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.name == "engine_shim" and what in one.getMessage()]


# ---- a try that fails ----


def test_a_keeper_outlives_that_there_is_no_descriptor(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there_are = threading.Event()
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        monkeypatch.setattr(
            socket, "socket", failing(socket.socket, OSError(errno.EMFILE, "Too many open files"), there_are)
        )
        daemons.host(0).die()
        driver.lost()
        tried(driver, 3)
        reason = driver.shim.status().target_only or ""
        assert "Too many open files" in reason
        assert "RLIMIT_NOFILE" in reason, "what there is to do"
        assert isinstance(driver.shim._keeper.fault, DaemonUnreachable)
        assert [one.levelno for one in said(caplog, "Too many open files")] == [logging.WARNING], "once"
        there_are.set()
        driver.session(other_than=first.session)
        driver.ok()


@pytest.mark.parametrize(
    "fault", [RuntimeError("can't start new thread"), OverflowError("int too big"), MemoryError(), OSError(5, "EIO")]
)
def test_a_keeper_outlives_what_no_try_raises_on_purpose(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    over = threading.Event()
    monkeypatch.setattr(Handover, "run", failing(Handover.run, fault, over))
    with Daemons(short_dir / "e"), shim_with(short_dir / "e") as driver:
        tried(driver, 3)
        reason = f"a try failed unexpectedly: {fault!r}"
        assert driver.shim.status().target_only == reason
        (record,) = said(caplog, reason)
        assert record.exc_info, "with its traceback: nobody thought of it"
        assert record.exc_info[1] is fault
        over.set()
        driver.session()
        driver.ok()


def test_a_strict_start_says_what_was_unexpected(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handover, "run", failing(Handover.run, RuntimeError("no such luck"), threading.Event()))
    options = ShimOptions(strict=True, start_timeout_s=0.2)
    before = held()
    with SoftStream() as stream, pytest.raises(HandshakeFailed, match="no such luck") as raised:
        shim(short_dir, stream, options)
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert held() == before


def test_an_absurd_network_timeout_is_no_handshake(short_dir: Path) -> None:
    def absurd(host: Host) -> None:
        host.take_hello()
        host.channel.send(m.Welcome(session="1" * 16, pid=1, version="x", network_timeout_ms=1e300))
        host.take_region()
        host.ready()

    with Daemons(short_dir / "e", [absurd, absurd, serving]), shim_with(short_dir / "e") as driver:
        driver.session()
        driver.ok()
        fault = driver.shim._keeper.fault
        assert isinstance(fault, HandshakeFailed)
        assert "network_timeout_ms" in str(fault)


# ---- the keeper's own faults ----


def test_a_watch_that_fails_gives_its_session_up(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fault = [ValueError("a bug")]
    real = keeper._heard

    def heard(*arguments: Any) -> Any:
        if fault:
            raise fault.pop()
        return real(*arguments)

    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first, host = driver.ok(), daemons.host(0)
        monkeypatch.setattr(keeper, "_heard", heard)
        host.channel.send(m.Resumed())  # any word of it makes the watch look
        driver.session(other_than=first.session)
        driver.ok()
        assert host.on_words.word(Word.LOST) == 1, "the daemon is told to let go"
        assert driver.shim.status().regions.fenced == 1, "until it does, its region is nobody's"
        host.die()
        until(lambda: driver.shim.status().regions.free == 1, "the region is back")
        (record,) = said(caplog, "the keeper failed: ValueError('a bug')")
        assert (record.levelno, bool(record.exc_info)) == (logging.ERROR, True)


def test_a_look_that_fails_again_and_again_is_not_said_again_and_again(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        monkeypatch.setattr(Pool, "look", failing(Pool.look, ValueError("a bug"), over))
        daemons.host(0).die()
        tried(driver, 4)
        assert driver.shim.session is None
        assert driver.shim.status().target_only == "a try failed unexpectedly: ValueError('a bug')"
        lines = [one.getMessage() for one in said(caplog, "a bug")]
        assert lines == [
            "target-only: the keeper failed: ValueError('a bug')",
            "target-only: a try failed unexpectedly: ValueError('a bug')",
        ]
        over.set()
        driver.session(other_than=first.session)
        driver.ok()


# ---- words that a daemon writes ----


def test_a_phase_that_is_none_hurts_nobody(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        daemons.host(0).on_words.phase(99)  # type: ignore[arg-type]
        current = driver.shim.status().current
        assert current
        assert current.phase is Phase.NONE
        daemons.host(0).die()
        driver.session(other_than=first.session)
        driver.ok()
        daemons.host(1).on_words.phase(0xFFFF_FFFF)  # type: ignore[arg-type]
        driver.shim.close()
        closed = driver.shim.status().current
        assert closed
        assert closed.phase is Phase.NONE


def test_a_recorded_verdict_that_is_none_hurts_nobody() -> None:
    record = ffi.new("struct hf_record *", {"round": 7, "verdict": 99})
    assert record_of(record).verdict is Verdict.LOST


# ---- a shim that does not come to be ----


def shim(directory: Path, stream: SoftStream, options: ShimOptions | None = None) -> Shim:
    engine = EngineIdentity(name="e")
    return Shim(directory / "e", geometry=SMALL, model="test", engine=engine, stream=stream, options=options)


def fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("nth", [1, 2])
def test_a_shim_without_an_eventfd_leaves_nothing(short_dir: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    real, calls = os.eventfd, []

    def eventfd(*arguments: int) -> int:
        calls.append(arguments)
        if len(calls) == nth:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*arguments)

    with SoftStream() as stream:
        before = fds(), held()
        with monkeypatch.context() as patch:
            patch.setattr(os, "eventfd", eventfd)
            with pytest.raises(ShimError, match=r"no eventfd for the keeper: Too many open files\. Raise"):
                shim(short_dir, stream)
        assert (fds(), held()) == before
        stream.close()  # nothing of the shim is on it


def test_a_shim_without_a_thread_leaves_nothing(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with SoftStream() as stream:
        before = fds(), held()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(ShimError, match="no thread for the keeper: can't start new thread"):
                shim(short_dir, stream)
        assert (fds(), held()) == before
        stream.close()
