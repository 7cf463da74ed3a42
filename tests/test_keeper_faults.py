# SPDX-License-Identifier: Apache-2.0
"""What fails in the keeper besides a try: its log, its own rest. The thread goes on, and what it watched is given up and counted."""

from __future__ import annotations

import contextlib
import logging
import threading

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from engine_hand import PATIENCE_S
from engine_harness import SMALL
from shim_daemon import Daemons
from shim_harness import Driver, shim_with
from test_keeper import failing

from engine_shim import Mode, ShimOptions, keeper
from engine_shim.keeper import Keeper
from engine_shim.pool import Pool
from engine_shim.selftest import SelfTest
from engine_shim.trial import Trial
from hostflag import messages as m
from hostflag.messages import EngineIdentity
from hostflag.region import Word


class Raising(logging.Handler):
    """As logging's last resort does where stderr is closed."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError("I/O operation on closed file.")


@contextlib.contextmanager
def no_log() -> Iterator[None]:
    log, handler = logging.getLogger("engine_shim"), Raising()
    log.addHandler(handler)
    try:
        with pytest.raises(ValueError, match="closed file"):
            log.error("every line raises")
        yield
    finally:
        log.removeHandler(handler)


def alive(driver: Driver) -> bool:
    return driver.shim._keeper._thread.is_alive()


def test_a_log_that_raises_costs_no_session(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver, no_log():
        first = driver.ok()
        daemons.host(0).die()
        driver.session(other_than=first.session)
        driver.ok()
        assert alive(driver)
        assert driver.shim.status().losses == {"HANGUP": 1}


def test_a_log_that_raises_ends_no_trial() -> None:
    class Refusing:
        async_refusal = "not on this device"

    engine = EngineIdentity(name="e")
    with no_log():
        trial = Trial(cast("Any", Refusing()), Mode.ASYNC, ShimOptions(), geometry=SMALL, model="t", engine=engine)
    assert trial.mode is Mode.SYNC


def test_a_self_test_that_can_say_nothing_has_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(test: SelfTest) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(SelfTest, "_all", fails)
    test = SelfTest(cast("Any", None), Path("x"), geometry=SMALL, model="t", engine=EngineIdentity(name="e"))
    with no_log():
        test._run()
    assert test._reason == "the self-test failed: RuntimeError('a bug')"


@pytest.mark.parametrize("what", ["_abandon", "_explain", "_rest"])
def test_a_failure_while_it_tells_of_a_failure(short_dir: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    over, again = threading.Event(), threading.Event()

    def fails(*_: Any) -> None:
        again.set()
        raise ValueError("and another")

    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        with monkeypatch.context() as patch:
            patch.setattr(Pool, "look", failing(Pool.look, ValueError("a bug"), over))
            patch.setattr(Keeper, what, fails)
            daemons.host(0).die()
            assert again.wait(PATIENCE_S)
            assert alive(driver)
            over.set()
        driver.session(other_than=first.session)
        driver.ok()


def test_a_session_whose_watch_failed_is_given_up_first_and_counted(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = [ValueError("a bug")]
    real, rest = keeper._heard, Keeper._rest
    seen = []

    def heard(*arguments: Any) -> Any:
        if fault:
            raise fault.pop()
        return real(*arguments)

    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", respawns=3) as driver:
        first, host = driver.ok(), daemons.host(0)

        def resting(self: Keeper) -> None:
            seen.append((host.on_words.word(Word.LOST), driver.shim.session, dict(self.losses)))
            rest(self)

        monkeypatch.setattr(keeper, "_heard", heard)
        monkeypatch.setattr(Keeper, "_rest", resting)
        host.channel.send(m.Resumed())  # any word of it makes the watch look
        driver.session(other_than=first.session)
        driver.ok()
        assert seen == [(1, None, {"CLOSED": 1})]
        status = driver.shim.status()
        assert (status.losses, status.last_loss, status.budget_left) == ({"CLOSED": 1}, "CLOSED", 2)


def test_a_loss_that_was_noted_is_not_noted_again(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        monkeypatch.setattr(Keeper, "_back_off", failing(Keeper._back_off, ValueError("a bug"), over))
        daemons.host(0).die()
        driver.session(other_than=first.session)
        over.set()
        driver.ok()
        assert driver.shim.status().losses == {"HANGUP": 1}
