# SPDX-License-Identifier: Apache-2.0
"""What a loss costs: nothing where it was planned, else a part of the budget; then target-only until that comes back."""

from __future__ import annotations

import errno
import time

from pathlib import Path

import pytest

from engine_hand import until
from shim_daemon import Daemons
from shim_harness import shim_with

from engine_shim import SessionOptions, SubmitFailed
from hostflag import messages as m
from hostflag.verdicts import Phase, Skip


@pytest.mark.parametrize("how", ["message", "phase"])
def test_a_planned_end_costs_nothing(short_dir: Path, how: str) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", respawns=0) as driver:
        first = driver.ok()
        old = daemons.host(0)
        if how == "message":
            old.channel.send(m.Draining(reason="test"))
        else:
            old.on_words.phase(Phase.DRAINING)
        old.die()
        driver.session(other_than=first.session)
        driver.ok()
        status = driver.shim.status()
        assert (status.losses, status.budget_left) == ({"DRAINED": 1}, 0)


def test_a_drain_that_was_called_off_is_not_planned(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        driver.ok()
        old = daemons.host(0)
        old.channel.send(m.Draining(reason="test"))
        old.channel.send(m.Resumed())
        old.die()
        driver.lost()
        until(lambda: driver.shim.status().losses == {"HANGUP": 1}, "an unplanned loss")


@pytest.mark.parametrize("how", ["SUBMIT", "GARBAGE"])
def test_a_drain_explains_no_failed_submit_and_no_garbage(short_dir: Path, how: str) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", respawns=3) as driver:
        first = driver.ok()
        old = daemons.host(0)
        old.channel.send(m.Draining(reason="test"))
        if how == "SUBMIT":
            driver.stream.fail_nth(1, errno.ENOMEM)
            with pytest.raises(SubmitFailed):
                driver.submit()
        else:
            old.on_words.phase(99)  # type: ignore[arg-type]
            driver.step()
        driver.session(other_than=first.session)
        status = driver.shim.status()
        assert (status.losses, status.budget_left) == ({how: 1}, 2)


def test_a_daemon_that_drains_and_falls_silent_was_planned(short_dir: Path) -> None:
    options = SessionOptions(beat_limit_ms=150.0)
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", respawns=0, session=options) as driver:
        first = driver.ok()
        old = daemons.host(0)
        old.channel.send(m.Draining(reason="test"))
        old.stop()
        driver.lost()
        driver.session(other_than=first.session)
        assert driver.shim.status().losses == {"DRAINED": 1}


def test_the_budget_is_spent_and_comes_back(short_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        Daemons(short_dir / "e") as daemons,
        shim_with(short_dir / "e", respawns=1, respawn_reset_s=2.0) as driver,
    ):
        first = driver.ok()
        assert driver.shim.status().budget_left == 1
        spent = time.monotonic()
        daemons.host(0).die()
        driver.session(other_than=first.session)
        driver.ok()
        assert driver.shim.status().budget_left == 0
        daemons.host(1).die()
        driver.lost()
        until(lambda: "budget" in (driver.shim.status().target_only or ""), "the reason is known")
        assert driver.step()[0].skip is Skip.NO_SESSION
        assert driver.shim.status().budget_wait_s > 0
        driver.session()
        assert time.monotonic() - spent >= 2.0
        driver.ok()
        said = [record for record in caplog.records if "target-only for the next" in record.getMessage()]
        assert len(said) == 1


def test_a_daemon_that_is_not_there_costs_no_budget(short_dir: Path) -> None:
    with shim_with(short_dir / "e", respawns=1, backoff_ms=(1.0, 2.0)) as driver:
        until(lambda: driver.shim._keeper.tries >= 10, "ten tries")
        assert driver.shim.status().budget_left == 1
