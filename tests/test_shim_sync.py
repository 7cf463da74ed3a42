# SPDX-License-Identifier: Apache-2.0
"""Synchronous rounds: the same words, region and daemon; the engine thread waits, and never for long."""

from __future__ import annotations

import errno
import threading
import time

from pathlib import Path

import numpy as np
import pytest

from engine_device import Ask
from engine_hand import until
from engine_harness import SMALL, drained
from shim_daemon import Daemons, Host
from shim_harness import Driver, shim_with

from engine_shim import AsyncRefused, Mode, SessionOptions, Shim, ShimOptions, SoftStream, SubmitFailed
from hostflag.messages import EngineIdentity
from hostflag.region import Word
from hostflag.verdicts import Skip, Verdict


def test_a_round_is_over_when_submit_returns(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", mode=Mode.SYNC) as driver:
        began_ns = time.monotonic_ns()
        driver.stream.work(30_000_000)
        ticket, out = driver.submit([Ask(0, 2, first=5), Ask(3, 1, first=9, gap=1)])
        assert ticket.ref
        assert driver.shim.verdict(ticket.ref) is Verdict.OK
        assert driver.shim.consumed(ticket.ref)
        assert out.tolist() == [[7, 8, 9], [7, 8, 9]]
        for shipment in daemons.host(0).on_words.shipped(1):
            driver.device.check(shipment)
        record = (driver.shim.settle(), driver.shim.record(ticket.ref))[1]
        assert record.gathered_ns - began_ns >= 30_000_000, "the rows were waited for"
        assert driver.shim.status().mode is Mode.SYNC


def test_many_rounds_and_every_byte(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", mode=Mode.SYNC) as driver:
        hand = None
        for step in range(60):
            asks = [Ask(slot, 1 + (step + slot) % 3, first=step * 4, rejected=step % 2) for slot in range(4)]
            ticket, out = driver.submit(asks)
            hand = hand or daemons.host(0).on_words
            assert ticket.round == step + 1
            assert (out == np.array([7, 8, 9])).all()
            for shipment in hand.shipped(ticket.round):
                driver.device.check(shipment)
            assert hand.array(ticket.round, "num_rejected", np.int32, 4) == [step % 2] * 4
            driver.device.kept.clear()


def test_a_context_only_step_does_not_wait_for_the_daemon(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", mode=Mode.SYNC) as driver:
        driver.session()
        until(lambda: daemons.host(0).hand, "a hand")
        daemons.host(0).answering.clear()
        ticket, _ = driver.submit(drafts=False)
        assert (ticket.round, ticket.context_rounds) == (None, 1)
        assert driver.shim.consumed(ticket.refs[0])
        assert driver.shim.verdict(ticket.refs[0]) is Verdict.OPEN
        daemons.host(0).answering.set()
        driver.ok()


def test_a_daemon_that_does_not_answer_costs_the_deadline_and_no_more(short_dir: Path) -> None:
    options = SessionOptions(expiries_limit=0, beat_limit_ms=0)
    with (
        Daemons(short_dir / "e") as daemons,
        shim_with(short_dir / "e", mode=Mode.SYNC, deadline_ms=100.0, session=options) as driver,
    ):
        driver.ok()
        daemons.host(0).answering.clear()
        began = time.monotonic()
        ticket, out = driver.submit()
        took = time.monotonic() - began
        assert ticket.ref
        assert driver.shim.verdict(ticket.ref) is Verdict.EXPIRED
        assert 0.1 <= took < 5.0
        assert (out >= 0).all()
        daemons.host(0).answering.set()
        driver.ok()


def test_a_daemon_that_dies_ends_the_wait_long_before_the_deadline(short_dir: Path) -> None:
    with (
        Daemons(short_dir / "e") as daemons,
        shim_with(short_dir / "e", mode=Mode.SYNC, deadline_ms=60_000.0) as driver,
    ):
        driver.ok()
        host = daemons.host(0)
        host.answering.clear()
        driver.stream.work(100_000_000)
        host.over.set()
        ticket, out = driver.submit()
        drained(driver.stream)  # a step that found the session lost already is target-only: ids come in stream order
        assert (out >= 0).all()
        if ticket.ref:
            assert driver.shim.verdict(ticket.ref) is Verdict.LOST
        else:
            assert ticket.skip is Skip.NO_SESSION, "it was seen before the round began"


def test_a_parked_wait_is_released_by_the_loss(short_dir: Path) -> None:
    def dies_when_asked(host: Host) -> None:
        host.shake_hands()
        until(lambda: host.on_words.word(Word.GATHERED) == 1, "gathered")

    with (
        Daemons(short_dir / "e", [dies_when_asked]),
        shim_with(short_dir / "e", mode=Mode.SYNC, deadline_ms=60_000.0) as driver,
    ):
        driver.session()
        ticket, _ = driver.submit()
        assert ticket.ref
        assert driver.shim.verdict(ticket.ref) is Verdict.LOST


def test_a_lost_region_is_adopted(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", mode=Mode.SYNC) as driver:
        first = driver.ok()
        daemons.host(0).die()
        driver.session(other_than=first.session)
        driver.ok()
        assert daemons.host(1).base == first.round
        assert driver.shim.status().registrations == 1


def test_a_stream_that_does_not_get_there_fails_the_submit(short_dir: Path) -> None:
    with (
        Daemons(short_dir / "e"),
        shim_with(short_dir / "e", mode=Mode.SYNC, session=SessionOptions(stream_limit_ms=50)) as driver,
    ):
        driver.session()
        driver.stream.work(1_000_000_000)
        with pytest.raises(SubmitFailed) as failed:
            driver.submit()
        assert failed.value.error == errno.ETIMEDOUT
        drained(driver.stream)
        until(lambda: driver.shim.status().regions.poisoned == 1, "its region is never used again")
        assert driver.shim.status().losses == {"SUBMIT": 1}


REFUSAL = "the device cannot use host pointers for stream memory operations"


def test_a_stream_that_cannot_be_parked_makes_rounds_synchronous(short_dir: Path) -> None:
    with (
        Daemons(short_dir / "e"),
        SoftStream(async_refusal=REFUSAL) as stream,
        Shim(short_dir / "e", geometry=SMALL, model="m", engine=EngineIdentity(name="refused"), stream=stream) as shim,
    ):
        driver = Driver(shim, stream)
        driver.session()
        ticket, out = driver.submit([Ask(0, 1, first=1)])
        assert ticket.ref
        assert shim.consumed(ticket.ref), "the engine thread has waited"
        assert out.tolist() == [[7, 8, 9]]
        assert (shim.status().mode, shim.status().async_refusal) == (Mode.SYNC, REFUSAL)


def test_a_strict_start_on_such_a_stream_raises_and_leaves_nothing(short_dir: Path) -> None:
    before = threading.active_count()
    with SoftStream(async_refusal=REFUSAL) as stream, pytest.raises(AsyncRefused, match="host pointers"):
        Shim(
            short_dir / "e",
            geometry=SMALL,
            model="m",
            engine=EngineIdentity(name="strict"),
            stream=stream,
            options=ShimOptions(strict=True),
        )
    assert threading.active_count() == before
