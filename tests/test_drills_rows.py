# SPDX-License-Identifier: Apache-2.0
"""A drill's row: times held against their bounds, and the machine's stalls against what is late."""

from __future__ import annotations

import pytest

from stood import MS, Stood

from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.timed import Timed, Window, longest_ms


@pytest.mark.parametrize(
    ("value", "stall_ms", "verdict"),
    [(19.0, 0.0, "GOOD"), (25.0, 0.0, "WRONG"), (25.0, 4.0, "WRONG"), (25.0, 6.0, "STALLED"), (None, 900.0, "WRONG")],
)
def test_a_time_is_held_against_its_bound_and_the_stalls(value: float | None, stall_ms: float, verdict: str) -> None:
    row = Row("x", "y")
    row.bound("seen", value, 20.0)
    row.hold(Stood((0.0, stall_ms)))
    assert row.verdict == verdict
    assert ("held against the longest stall of the whole drill" in row.details) == (value == 25.0), "the row says so"


@pytest.mark.parametrize(
    ("stall", "verdict"),
    [
        ((1000.0, 1006.0), "STALLED"),
        ((1016.0, 1400.0), "STALLED"),  # it went on after the time was taken
        ((500.0, 1010.0), "STALLED"),
        ((1008.0, 1012.0), "WRONG"),  # shorter than it was late
        ((0.0, 900.0), "WRONG"),  # before
        ((1100.0, 2600.0), "WRONG"),  # after
    ],
)
def test_a_stall_excuses_only_what_it_overlaps(stall: tuple[float, float], verdict: str) -> None:
    row = Row("x", "y")
    row.bound("seen", 25.0, 20.0, since_ns=1000 * MS)
    row.hold(Stood(stall))
    assert row.verdict == verdict
    assert not row.details


def test_a_time_that_a_stall_explains_hides_no_other() -> None:
    row = Row("x", "y")
    row.bounds("seen", [Timed(700.0, 1000 * MS), Timed(25.0, 5000 * MS)], 20.0)
    row.hold(Stood((900.0, 1800.0)))
    assert row.verdict == "WRONG"
    assert [one.excused for one in row.late] == [True, False]


@pytest.mark.parametrize(
    ("others", "still", "verdict"), [(38, True, "GOOD"), (37, True, "STALLED"), (1000, False, "WRONG")]
)
def test_few_of_many_that_a_stall_explains_are_left_out_and_said(others: int, still: bool, verdict: str) -> None:
    row = Row("x", "y")
    row.bounds("seen", [Timed(25.0, 1000 * MS), Timed(30.0, 5000 * MS), *[Timed(3.0, 0)] * others], 20.0)
    row.hold(Stood((900.0, 1800.0), (5000.0, 5020.0) if still else (0.0, 0.0)))
    assert row.verdict == verdict
    assert bool(row.spared) == (others >= 38)
    assert [one.what for one in row.late] == {"GOOD": [], "STALLED": ["seen", "seen"], "WRONG": ["seen"]}[verdict]
    if verdict == "GOOD":
        assert "2 of 40: seen: 30.0 ms, bound 20 ms" in row.spared[0]


def test_the_longest_of_times_is_none_where_one_never_came() -> None:
    assert longest_ms([Timed(3.0, 0), Timed.between(2 * MS, 9 * MS)]) == 7.0
    assert longest_ms([Timed(3.0, 0), Timed.between(2 * MS, None)]) is None
    assert longest_ms([]) is None


def test_a_time_that_came_too_early_is_no_stall() -> None:
    row = Row("x", "y")
    row.bound("lost", 100.0, 520.0, 400.0)
    row.hold(Stood((0.0, 900.0)))
    assert row.verdict == "WRONG"


def test_a_stall_excuses_nothing_but_times() -> None:
    for spoilt in (Row("x", "y", wrong_drafts=1), Row("x", "y", leaks=["a"]), Row("x", "y", faults=["b"])):
        spoilt.bound("seen", 25.0, 20.0)
        spoilt.hold(Stood((0.0, 900.0)))
        assert spoilt.verdict == "WRONG"
        assert spoilt.wrong


def test_every_late_time_has_to_be_excused() -> None:
    row = Row("x", "y")
    row.bound("seen", 25.0, 20.0)
    row.bound("released", 90.0, 20.0)
    row.hold(Stood((0.0, 10.0)))
    assert row.verdict == "WRONG"


@pytest.mark.parametrize(
    ("rounds", "stall", "verdict"),
    [
        ([], (0.0, 0.0), "GOOD"),
        ([Window(1000 * MS, 1201 * MS)], (1000.0, 1050.0), "WRONG"),
        ([Window(1000 * MS, 1201 * MS)], (1005.0, 1200.0), "STALLED"),
        ([Window(1000 * MS, 1201 * MS)], (3000.0, 4600.0), "WRONG"),
        ([Window(1000 * MS, 1201 * MS), Window(9000 * MS, 9201 * MS)], (1005.0, 2600.0), "WRONG"),
    ],
)
def test_rounds_that_expire_without_a_fault_are_a_fault_where_nothing_stood_still(
    rounds: list[Window], stall: tuple[float, float], verdict: str
) -> None:
    row = Row("x", "y")
    row.expired("the soak", rounds, 200.0, 15.0, among=19)
    row.hold(Stood(stall))
    assert row.verdict == verdict


@pytest.mark.parametrize(("own", "verdict"), [(False, "WRONG"), (True, "STALLED")])
def test_stalls_add_up_only_for_what_takes_none_of_them_for_time(own: bool, verdict: str) -> None:
    row = Row("made-up", "something")
    row.bounds("lost", [Timed(580.0, 0)], 520.0, own=own)
    row.hold(Stood((100, 140), (200, 240)))
    assert row.verdict == verdict
    row.hold(Stood((100, 140), (700, 740)))
    assert row.verdict == "WRONG", "behind it nothing counts"
