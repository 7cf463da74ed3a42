# SPDX-License-Identifier: Apache-2.0
"""How a session is lost, and what its loss does: gathered rounds go free at once, nothing is submitted any more."""

from __future__ import annotations

import time

from pathlib import Path

import pytest

from engine_harness import PATIENCE_S, Ask, FakeDaemon, drained, engine, until

from engine_shim import Session
from hostflag.verdicts import Loss, Skip, Verdict


def lost(session: Session) -> Loss:
    until(lambda: session.lost is not Loss.NONE, "the session is lost")
    return session.lost


def test_a_daemon_that_dies_frees_a_parked_round_long_before_its_deadline(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, deadline_ms=60_000) as (session, stream, device):
        batch = session.batch()
        out = device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        daemon.hand.see(1)
        daemon.hang_up()
        drained(stream)
        assert session.lost is Loss.HANGUP
        assert session.verdict(1) is Verdict.LOST
        assert session.word("lost") == 1
        assert (out >= 0).all()
        assert session.submit(batch).skip is Skip.NO_SESSION
        assert session.word("submitted") == 1


def test_a_daemon_that_dies_at_rest_is_noticed_at_rest(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, _, device):
        daemon.hang_up()
        assert lost(session) is Loss.HANGUP
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        assert session.submit(batch).skip is Skip.NO_SESSION


def test_what_the_daemon_says_is_no_hang_up(short_dir: Path) -> None:
    """Messages that nobody reads, empty ones too: only POLLHUP counts."""
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        assert daemon._channel is not None
        for payload in (b"", b"{}", b""):
            daemon._channel.socket.send(payload)
        batch = session.batch()
        for t in (1, 2):
            device.fill(batch, [Ask(0, 1)])
            assert session.submit(batch).round == t
            daemon.hand.finish(t)
            drained(stream)
        assert session.lost is Loss.NONE


def test_a_beat_that_stands_still_loses_the_session(short_dir: Path) -> None:
    with (
        FakeDaemon(short_dir) as daemon,
        engine(daemon, deadline_ms=60_000, beat_limit_ms=200) as (session, stream, device),
    ):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        daemon.hand.see(1)
        daemon.hand.beat()
        began = time.monotonic()
        drained(stream)
        assert time.monotonic() - began > 0.1
        assert session.lost is Loss.BEAT
        assert session.verdict(1) is Verdict.LOST


def test_a_daemon_that_beats_is_not_lost_however_slow_it_is(short_dir: Path) -> None:
    with (
        FakeDaemon(short_dir) as daemon,
        engine(daemon, deadline_ms=60_000, beat_limit_ms=2_000) as (session, stream, device),
    ):
        daemon.beat()
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        daemon.hand.see(1)
        assert not stream.wait(stream.marker(), 3.0)
        assert session.lost is Loss.NONE
        daemon.hand.finish(1)
        drained(stream)


def test_silence_at_rest_is_not_counted(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, beat_limit_ms=2_000) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        for t in range(1, 4):
            session.submit(batch)
            daemon.hand.finish(t)
            drained(stream)
            time.sleep(1.0)
        assert session.lost is Loss.NONE


def test_expired_rounds_with_none_finished_between_lose_the_session(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, deadline_ms=50, expiries_limit=3) as (session, stream, device):
        daemon.beat()
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        for t in range(1, 4):
            assert session.submit(batch).round == t
            drained(stream)
            assert session.verdict(t) is Verdict.EXPIRED
        assert lost(session) is Loss.EXPIRIES


def test_a_finished_round_forgives_the_expired_ones_before_it(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, deadline_ms=100, expiries_limit=2, beat_limit_ms=0) as (
        session, stream, device,
    ):  # fmt: skip
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        for t, finish in enumerate((False, True, False, True, False), start=1):
            assert session.submit(batch).round == t
            if finish:
                daemon.hand.see(t)
                assert daemon.hand.decide(t, Verdict.TIMEOUT), (
                    "the watchdog was first: the machine is too slow for this test"
                )
                daemon.hand.finish(t)
            drained(stream)
            daemon.hand.retire(t)
            assert session.lost is Loss.NONE
        session.submit(batch)
        assert lost(session) is Loss.EXPIRIES


def test_expired_context_only_rounds_are_not_counted(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, deadline_ms=30, expiries_limit=1, beat_limit_ms=0) as (
        session, stream, device,
    ):  # fmt: skip
        batch = session.batch()
        for t in (1, 2, 3):
            device.fill(batch, [Ask(0, 1, first=t)], drafts=False)
            session.submit(batch)
            drained(stream)
            until(lambda t=t: session.verdict(t) is Verdict.EXPIRED, "expired")  # type: ignore[misc]
        assert session.lost is Loss.NONE
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        assert lost(session) is Loss.EXPIRIES


def test_context_only_rounds_forgive_nothing(short_dir: Path) -> None:
    """A daemon whose drafts never come back is lost, however many context-only rounds it takes in between."""
    with FakeDaemon(short_dir) as daemon, engine(daemon, deadline_ms=100, expiries_limit=2, beat_limit_ms=0) as (
        session, stream, device,
    ):  # fmt: skip
        batch = session.batch()
        for t in (1, 2, 3):
            drafts = t != 2
            device.fill(batch, [Ask(0, 1, first=t)], drafts=drafts)
            session.submit(batch)
            if not drafts:
                daemon.hand.finish(t)
            drained(stream)
            until(lambda t=t: session.word("released") >= t, "released")  # type: ignore[misc]
        assert session.verdict(3) is Verdict.EXPIRED
        assert lost(session) is Loss.EXPIRIES


@pytest.mark.parametrize("drafts", [False, True])
def test_after_the_loss_every_round_is_decided(short_dir: Path, drafts: bool) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()
        for _ in range(3):
            device.fill(batch, [Ask(0, 1)], drafts=False)
            session.submit(batch)
        device.fill(batch, [Ask(0, 1)], drafts=drafts)
        session.submit(batch)
        daemon.hand.see(4)
        daemon.hang_up()
        drained(stream)
        until(lambda: session.word("released") == 4, "released")
        assert [session.verdict(t) for t in range(1, 5)] == [Verdict.LOST] * 4


def test_the_first_reason_stands(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, _, _):
        session.give_up()
        daemon.hang_up()
        time.sleep(0.05)
        assert session.lost is Loss.CLOSED
        assert session.status().lost_ns > 0
        session.close(timeout_s=PATIENCE_S)
        assert daemon.farewell == [], "no goodbye of a session that was given up"
