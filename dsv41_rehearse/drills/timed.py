# SPDX-License-Identifier: Apache-2.0
"""Times that drills take, and those that are out of their bound, each with its moment: a stall excuses what it overlaps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Window(NamedTuple):
    """From when to when (CLOCK_MONOTONIC, ns)."""

    since_ns: int
    until_ns: int


class Stood(Protocol):
    """What knows when the machine stood still."""

    def longest_ms(self, window: Window | None = None) -> float:
        """Return the longest stall, or the most that one has of a window."""

    def summed_ms(self, window: Window | None = None) -> float:
        """Return how long one processor stood still in all, the one that did the longest."""


@dataclass(frozen=True)
class Timed:
    """A time that was taken. ``ms``: None: what it waited for never came. ``since_ns``: when it began (CLOCK_MONOTONIC)."""

    ms: float | None
    since_ns: int

    @classmethod
    def between(cls, since_ns: int, until_ns: int | None) -> Timed:
        """Return the time from then to then; None, or 0: never."""
        return cls((until_ns - since_ns) / 1e6 if until_ns else None, since_ns)


def longest_ms(times: Iterable[Timed]) -> float | None:
    """Return the longest; None where one never came, or there is none."""
    taken = [one.ms for one in times]
    there = [ms for ms in taken if ms is not None]
    return max(there) if there and len(there) == len(taken) else None


@dataclass
class Late:
    """
    A time out of its bound.

    ``what``: which time, ``how``: how late, in words. ``by_ms``: by how much. ``window``: when; None: somewhere in the drill.
    ``among``: how many such times were taken. ``own``: counted in somebody's own running time, so that each stall adds to it.
    ``stood_ms``: for how long the machine stood still then: at a time, or of ``own`` in all.
    """

    what: str
    how: str
    by_ms: float
    window: Window | None
    among: int = 1
    own: bool = False
    stood_ms: float = 0.0

    def hold(self, stood: Stood) -> None:
        """Hold it against the machine's stalls."""
        self.stood_ms = round((stood.summed_ms if self.own else stood.longest_ms)(self.window), 1)

    @property
    def excused(self) -> bool:
        """Whether the machine stood still for longer than it is late."""
        return self.by_ms < self.stood_ms

    def __str__(self) -> str:
        where = "somewhere in the drill" if self.window is None else "then"
        return (
            f"{self.what}: {self.how} (stood still {where} for {self.stood_ms:.0f} ms{' in all' if self.own else ''})"
        )
