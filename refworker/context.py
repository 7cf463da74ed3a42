# SPDX-License-Identifier: Apache-2.0
"""The contract's whole rule for one request's context."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Change(NamedTuple):
    """
    What a round's rows do to a context.

    ``forget``: everything from this position on goes first; None: nothing does. ``kept``: indices of the rows that stay,
    ascending; None: all of them.
    """

    forget: int | None
    kept: list[int] | None


class Context:
    """
    Rows extend a context, also across a gap: what it lacks, it lacks. A position that goes back restarts it there.

    That rule is all, and it goes row by row. Only the newest position is needed to apply it.
    """

    __slots__ = ("generation", "newest")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.newest = -1

    def take(self, positions: Sequence[int]) -> Change:
        """Apply the rule to the rows of one round, at least one, in the order in which they came."""
        lowest = min(positions)
        forget = lowest if lowest <= self.newest else None
        self.newest = positions[-1]
        if all(a < b for a, b in pairwise(positions)):
            return Change(forget, None)
        # Within the round too, a row goes where a later one has its position or a lower one.
        kept: list[int] = []
        floor = positions[-1] + 1
        for index in range(len(positions) - 1, -1, -1):
            if positions[index] < floor:
                floor = positions[index]
                kept.append(index)
        return Change(forget, kept[::-1])

    def clear(self) -> None:
        """Empty the context: what was known is lost."""
        self.newest = -1
