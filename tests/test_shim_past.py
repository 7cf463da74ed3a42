# SPDX-License-Identifier: Apache-2.0
"""Sessions of the past: which of them can still be asked."""

from __future__ import annotations

from typing import cast

from engine_shim.seat import PAST, Seat
from engine_shim.session import Session
from engine_shim.ticket import RoundRef


class Old:
    """What a seat asks of a session."""

    def __init__(self, number: int, *, ended: bool) -> None:
        self.id = number
        self.ended = ended

    def settle(self) -> int:
        return 0


def taken(seat: Seat, old: Old) -> Old:
    seat.offered = cast("Session", old)
    seat.take()
    return old


def found(seat: Seat, old: Old) -> bool:
    return seat.find(RoundRef(old.id, 1)) is cast("Session", old)


def test_none_is_forgotten_that_the_stream_is_not_past() -> None:
    seat = Seat()
    stuck = taken(seat, Old(1, ended=False))
    others = [taken(seat, Old(number, ended=True)) for number in range(2, 2 + PAST + 3)]
    assert found(seat, stuck), "whoever frees memory by ``consumed`` would free it under the stream"
    assert [found(seat, old) for old in others] == [False] * 2 + [True] * (PAST + 1)
    stuck.ended = True
    taken(seat, Old(99, ended=True))
    assert not found(seat, stuck)
    assert not seat.unsettled


def test_the_last_ones_can_be_asked() -> None:
    seat = Seat()
    sessions = [taken(seat, Old(number, ended=True)) for number in range(PAST + 3)]
    assert [found(seat, old) for old in sessions] == [False] * 2 + [True] * (PAST + 1)
