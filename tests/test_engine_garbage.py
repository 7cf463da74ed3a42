# SPDX-License-Identifier: Apache-2.0
"""A daemon that writes garbage into the words it may write: the stream goes on, the session is lost, and nothing raises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from engine_harness import Ask, FakeDaemon, Hand, drained, engine, until

from engine_shim import Ticket
from hostflag.region import Word
from hostflag.verdicts import Loss, Skip, Verdict


FAR: Final = 0x4000_0000
DEADLINE_MS: Final = 100.0
SLOTS: Final = 8


def write(hand: Hand, part: str, value: int) -> None:
    """Store into the first word of a part: ``shared_words`` holds released, ``daemon_words`` retired."""
    at = hand.region.base + getattr(hand.region.layout, part)
    hand._module.ffi.cast("uint32_t *", at)[0] = value & 0xFFFF_FFFF


def round_of(ticket: Ticket) -> int:
    assert ticket.round is not None
    return ticket.round


@pytest.mark.parametrize("away", [-FAR, -SLOTS - 2, 1, FAR, -0x7FFF_FFFF, 0x7FFF_FFFF, 0x8000_0000])
def test_a_released_that_cannot_be(short_dir: Path, away: int) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, deadline_ms=DEADLINE_MS) as (session, stream, device):
        daemon.beat()
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        t = round_of(session.submit(batch))
        daemon.hand.see(t)
        write(daemon.hand, "shared_words", t + away)
        drained(stream)
        until(lambda: session.lost is Loss.GARBAGE, "lost")
        assert session.consumed(t)
        assert session.verdict(t) is Verdict.LOST
        ahead = 0 < away < 0x8000_0000
        assert session.word("released") == (t + away if ahead else t), "it never goes back"
        assert session.submit(batch).skip is Skip.NO_SESSION


@pytest.mark.parametrize("value", [11, 99, 0x8000_0000, 0xFFFF_FF8C], ids=hex)
def test_a_verdict_that_is_none(short_dir: Path, value: int) -> None:
    """The last one is -ESTALE in C's words."""
    with FakeDaemon(short_dir) as daemon, engine(daemon, deadline_ms=DEADLINE_MS) as (session, stream, device):
        daemon.beat()
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        t = round_of(session.submit(batch))
        decide_as(daemon.hand, t, value)
        drained(stream)
        assert session.verdict(t) is Verdict.LOST
        assert session.settle() == 1
        assert session.record(t).verdict is Verdict.LOST
        assert session.lost is Loss.GARBAGE


def decide_as(hand: Hand, t: int, value: int) -> None:
    """Finish a round with this for a verdict."""
    hand.see(t)
    ffi = hand._module.ffi
    assert hand._lib.hf_decide(hand.region, t, ffi.cast("int32_t", value))
    hand.release(t)
    hand.retire(t)


def a_phase(hand: Hand, t: int) -> None:
    hand.phase(99)  # type: ignore[arg-type]


def retired_early(hand: Hand, t: int) -> None:
    write(hand, "daemon_words", t + 1)


def retired_long_ago(hand: Hand, t: int) -> None:
    write(hand, "daemon_words", t - SLOTS - 1)


@pytest.mark.parametrize("garbage", [a_phase, retired_early, retired_long_ago])
def test_what_only_a_submit_looks_at(short_dir: Path, garbage: Callable[[Hand, int], Any]) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, deadline_ms=10_000.0) as (session, stream, device):
        daemon.beat()
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        t = round_of(session.submit(batch))
        daemon.hand.finish(t, Verdict.OK, [1, 2, 3])
        drained(stream)
        garbage(daemon.hand, t)
        assert session.submit(batch).skip is Skip.NO_SESSION
        assert session.lost is Loss.GARBAGE
        drained(stream)


def test_at_rest_and_then_a_submit(short_dir: Path) -> None:
    """Nobody looks at rest; the next round's deadline holds all the same."""
    with FakeDaemon(short_dir) as daemon, engine(daemon, deadline_ms=DEADLINE_MS) as (session, stream, device):
        daemon.beat()
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        t = round_of(session.submit(batch))
        daemon.hand.finish(t, Verdict.OK, [1, 2, 3])
        drained(stream)
        write(daemon.hand, "shared_words", t - FAR)
        assert daemon.hand.word(Word.RELEASED) == t - FAR & 0xFFFF_FFFF
        after = session.submit(batch)
        drained(stream)
        until(lambda: session.lost is Loss.GARBAGE, "lost")
        if after.round:
            assert session.verdict(after.round) is Verdict.LOST
