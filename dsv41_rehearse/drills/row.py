# SPDX-License-Identifier: Apache-2.0
"""What a drill found: one row of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dsv41_rehearse.drills.timed import Late, Stood, Timed, Window


FEW_OF: Final = 20  # one of so many times at most
MARGIN_NS: Final = 10_000_000  # around a moment that was late: what takes times is itself held up
Verdict = Literal["GOOD", "WRONG", "STALLED", "SKIPPED"]


@dataclass
class Row:
    """
    One run of one drill. Times are milliseconds; None: it did not happen, or is not this fault's.

    ``detected_ms``: from the fault to the loss (or whatever notices it) seen; ``released_ms``: the longest a parked round waited
    after the fault, or after its gathering where that was later; ``parked``: the most rounds parked at once by the fault;
    ``target_only``: steps without drafts meanwhile; ``recovered_ms``: from the moment that it could be, as the bound counts, to
    the first drafted round; ``leaks``: what is left over, in words. ``faults``: what is out of its bound, or wrong, in words.
    ``late``: times out of their bound: what a stalled machine may explain; ``left_out``: those that it does, few of many. ``skipped``: why it could not
    run here. ``stall_ms``: the longest scheduling stall while it ran, measured beside it. ``first``: what the run before said, where
    it was STALLED and this is the second.
    """

    drill: str
    happened: str
    detected_ms: float | None = None
    released_ms: float | None = None
    parked: int | None = None
    target_only: int | None = None
    recovered_ms: float | None = None
    wrong_drafts: int = 0
    leaks: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    left_out: list[Late] = field(default_factory=list)
    skipped: str | None = None
    stall_ms: float = 0.0
    seconds: float = 0.0
    seed: int = 0
    first: str | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def bound(
        self,
        what: str,
        value: float | None,
        most: float,
        least: float | None = None,
        *,
        since_ns: int | None = None,
        among: int = 1,
        own: bool = False,
    ) -> None:
        """
        Hold a time (ms) against its bound. One that never came is a fault; one that came late is ``late``.

        ``since_ns``: when it began (CLOCK_MONOTONIC); None: nobody knows, then the longest stall of the whole drill may explain it.
        ``among``: how many such times there are. ``own``: counted in the watchdog's own running time, see ``Late``.
        """
        if value is None:
            self.faults.append(f"{what}: never")
        elif value > most:
            window = None if since_ns is None else Window(since_ns, since_ns + int(value * 1e6))
            self.tardy(what, f"{value:.1f} ms, bound {most:g} ms", value - most, window, among=among, own=own)
        elif least is not None and value < least:
            self.faults.append(f"{what}: {value:.1f} ms, not before {least:g} ms")

    def bounds(
        self, what: str, times: Iterable[Timed], most: float, least: float | None = None, *, own: bool = False
    ) -> None:
        """Hold each of these times against a bound: one that a stall explains hides no other."""
        taken = list(times)
        for one in taken:
            self.bound(what, one.ms, most, least, since_ns=one.since_ns, among=len(taken), own=own)

    def expired(self, what: str, rounds: Iterable[Window], deadline_ms: float, usual_ms: float, *, among: int) -> None:
        """Rounds, of so many, that a watchdog ended unharmed: each was late by the deadline, less what a round takes."""
        for window in rounds:
            self.tardy(what, "a round expired without a fault", deadline_ms - usual_ms, window, among=among)

    def tardy(
        self, what: str, how: str, by_ms: float, window: Window | None, *, among: int = 1, own: bool = False
    ) -> None:
        """Note something that came so much too late: only where the machine stood still for longer meanwhile it was the machine."""
        wide = None if window is None else Window(window.since_ns - MARGIN_NS, window.until_ns + MARGIN_NS)
        self.late.append(Late(what, how, by_ms, wide, among, own))

    def hold(self, stood: Stood) -> None:
        """
        Hold what was late against the machine's stalls, once the drill is over.

        Few of many that a stall explains are left out: the others of their kind show what the drill is to show.
        """
        self.stall_ms = round(stood.longest_ms(), 1)
        for one in self.late:
            one.hold(stood)
        explained = Counter(one.what for one in self.late if one.excused)
        self.left_out = [one for one in self.late if one.excused and explained[one.what] * FEW_OF <= one.among]
        self.late = [one for one in self.late if one not in self.left_out]
        anywhere = [str(one) for one in self.late + self.left_out if one.window is None]
        if anywhere:
            self.details["held against the longest stall of the whole drill"] = anywhere

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note ``otherwise`` as a fault where something does not hold. For what no stall explains."""
        if not holds:
            self.faults.append(otherwise)

    @property
    def verdict(self) -> Verdict:
        """
        GOOD: within every bound. WRONG: not. SKIPPED: could not run here.

        STALLED: only times are out of bound, each by less than the machine stood still meanwhile: the drill says nothing, run it again.
        """
        if self.skipped is not None:
            return "SKIPPED"
        if self.faults or self.leaks or self.wrong_drafts:
            return "WRONG"
        if self.late:
            return "STALLED" if self.excused else "WRONG"
        return "GOOD"

    @property
    def excused(self) -> bool:
        """Whether every time that is late is late by less than the machine stood still meanwhile."""
        return all(one.excused for one in self.late)

    @property
    def spared(self) -> list[str]:
        """What was left out, in words: of each kind how many, and the worst."""
        kinds = {one.what: [other for other in self.left_out if other.what == one.what] for one in self.left_out}
        return [
            f"left out, since the machine stood still: {len(few)} of {few[0].among}: {max(few, key=lambda one: one.by_ms)}"
            for few in kinds.values()
        ]

    @property
    def wrong(self) -> list[str]:
        """What speaks against it, in words."""
        drafts = [f"{self.wrong_drafts} wrong drafts"] if self.wrong_drafts else []
        return [*drafts, *self.faults, *map(str, self.late), *(f"left over: {leak}" for leak in self.leaks)]
