# SPDX-License-Identifier: Apache-2.0
"""The contract's rule for contexts, against the rule applied row by row to a plain dictionary."""

from __future__ import annotations

import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from refworker.context import Change, Context


# Small numbers meet often: repeats, gaps and steps back are all likely.
ROUNDS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6), max_size=8)


def take_one_by_one(held: dict[int, object], positions: list[int], rows: list[object]) -> None:
    """Apply the rule as docs/CONTRACT.md words it."""
    for position, row in zip(positions, rows, strict=True):
        if held and position <= max(held):
            for gone in [known for known in held if known >= position]:
                del held[gone]
        held[position] = row


@settings(deadline=None)
@given(ROUNDS)
def test_the_rule_a_round_at_a_time_is_the_rule_row_by_row(rounds: list[list[int]]) -> None:
    context = Context(generation=1)
    expected: dict[int, object] = {}
    held: dict[int, object] = {}
    for positions in rounds:
        rows = [object() for _ in positions]
        take_one_by_one(expected, positions, rows)
        change = context.take(positions)
        if change.forget is not None:
            held = {position: row for position, row in held.items() if position < change.forget}
        kept = range(len(positions)) if change.kept is None else change.kept
        for index in kept:
            assert not held or positions[index] > max(held)
            held[positions[index]] = rows[index]
        assert held == expected
        assert context.newest == max(expected)


@pytest.mark.parametrize(
    ("known", "positions", "change"),
    [
        ([], [0, 1, 2], Change(None, None)),
        ([], [100, 101], Change(None, None)),  # a prefix-cache hit
        ([0, 1], [2], Change(None, None)),
        ([0, 1], [7, 8], Change(None, None)),  # lost rounds
        ([0, 1, 2], [2], Change(2, None)),
        ([0, 1, 2], [0, 1], Change(0, None)),  # preempted
        ([5, 6], [3], Change(3, None)),
        ([0], [4, 5, 4], Change(None, [2])),
        ([0, 9], [10, 3, 4], Change(3, [1, 2])),
        ([], [5, 5, 5], Change(None, [2])),
    ],
)
def test_the_rule_by_example(known: list[int], positions: list[int], change: Change) -> None:
    context = Context(generation=1)
    if known:
        context.take(known)
    assert context.take(positions) == change


def test_a_cleared_context_forgets_nothing_more() -> None:
    context = Context(generation=1)
    context.take([8, 9])
    context.clear()
    assert context.take([0]) == Change(None, None)
