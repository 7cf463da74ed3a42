# SPDX-License-Identifier: Apache-2.0
"""Regions that no session is ever on again: others take their place, up to a bound, and then it is said what is missing."""

from __future__ import annotations

import errno

from pathlib import Path

import pytest

from engine_hand import Hand, until
from engine_harness import drained
from shim_daemon import Daemons
from shim_harness import Driver, shim_with

from engine_shim import NoRegion, SubmitFailed, pool
from hostflag.region import Word


def fail(driver: Driver, *, onwards: bool = False) -> int:
    """Have a stream operation of a submit fail; return the session that is lost with it."""
    session = driver.ok().session
    assert session is not None
    driver.stream.fail_nth(1, errno.ENOMEM, onwards=onwards)
    with pytest.raises(SubmitFailed, match="the session is lost"):
        driver.submit()
    if not onwards:
        drained(driver.stream)
    return session


def without(driver: Driver, daemons: Daemons) -> str:
    """Return why there is no session, once no region can be had; no daemon is asked for any meanwhile."""
    keeper = driver.shim._keeper
    until(lambda: isinstance(keeper.fault, NoRegion), f"no region: {driver.shim.status()}")
    asked, tries = len(daemons.hosts), keeper.tries
    until(lambda: keeper.tries >= tries + 5, "five tries")
    assert len(daemons.hosts) == asked, "it would make a session each time"
    return driver.shim.status().target_only or ""


def test_failed_submits_do_not_use_the_regions_up(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", regions=2) as driver:
        for number in range(5):
            lost = fail(driver)
            daemons.host(number).die()
            driver.session(other_than=lost)
        driver.ok()
        status = driver.shim.status()
        assert (status.regions.poisoned, status.regions.in_use) == (5, 1)
        assert status.registrations == 6
        assert {host.base for host in daemons.hosts} == {None}, "each a new one"


def test_only_so_many_are_replaced(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "REPLACED", 2)
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", regions=1, backoff_ms=(1.0, 5.0)) as driver:
        for number in range(3):
            lost = fail(driver)
            daemons.host(number).die()
            if number < 2:
                driver.session(other_than=lost)
        why = without(driver, daemons)
        assert "all 1 regions are taken; 3 are poisoned, of which 2 were replaced" in why
        assert "start the engine anew" in why
        assert "dsv41-proxyd" not in why, "no daemon has any of them"


def test_one_that_a_daemon_may_still_have_is_not_replaced(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", regions=1, backoff_ms=(1.0, 5.0)) as driver:
        lost = fail(driver)
        why = without(driver, daemons)
        assert why == "all 1 regions are taken; 1 by daemons that are not gone: end the stopped dsv41-proxyd processes"
        daemons.host(0).die()
        driver.session(other_than=lost)
        driver.ok()


def test_one_that_the_stream_is_not_past_is_not_replaced(short_dir: Path) -> None:
    """The stream takes nothing any more, so nobody knows where it is."""
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", regions=1, backoff_ms=(1.0, 5.0)) as driver:
        fail(driver, onwards=True)
        daemons.host(0).die()
        until(lambda: driver.shim.status().regions.fenced == 0, "the daemon is gone")
        until(lambda: "not past" in (driver.shim.status().target_only or ""), "and that is not what is missing")
        why = without(driver, daemons)
        assert why == "all 1 regions are taken; 1 by rounds that the stream is not past: it is stuck, or very late"


def garbage(hand: Hand, part: str) -> None:
    """Leave a word 5 rounds ahead: released is the first of ``shared_words``, retired of ``daemon_words``."""
    at = hand.region.base + getattr(hand.region.layout, part)
    hand._module.ffi.cast("uint32_t *", at)[0] = hand.word(Word.SUBMITTED) + 5


@pytest.mark.parametrize("part", ["shared_words", "daemon_words"])
def test_words_that_every_daemon_would_refuse_are_handed_to_none(short_dir: Path, part: str) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", regions=1) as driver:
        for number in range(3):
            last = driver.ok()
            host = daemons.host(number)
            words = host.on_words
            until(lambda w=words: w.word(Word.RETIRED) == w.word(Word.SUBMITTED), "it has written its last word")  # type: ignore[misc]
            host.stop()
            garbage(words, part)
            host.die()
            driver.session(other_than=last.session)
        driver.ok()
        assert {host.base for host in daemons.hosts} == {None}, "each a new one"
        assert driver.shim.status().regions.poisoned == 3
