# SPDX-License-Identifier: Apache-2.0
"""What a drill found: one row of the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


Verdict = Literal["GOOD", "WRONG", "STALLED", "SKIPPED"]


@dataclass
class Row:
    """
    One run of one drill. Times are milliseconds; None: it did not happen, or is not this fault's.

    ``detected_ms``: from the fault to the loss (or whatever notices it) seen; ``released_ms``: the longest a parked round waited
    after the fault, or after its gathering where that was later; ``parked``: the most rounds parked at once by the fault;
    ``target_only``: steps without drafts meanwhile; ``recovered_ms``: from the moment that it could be, as the bound counts, to
    the first drafted round; ``leaks``: what is left over, in words. ``faults``: what is out of its bound, or wrong, in words.
    ``late``: times out of their bound, ``late_ms`` by how much: what a stalled machine may explain. ``skipped``: why it could not
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
    late: list[str] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    skipped: str | None = None
    stall_ms: float = 0.0
    seconds: float = 0.0
    seed: int = 0
    first: str | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def bound(self, what: str, value: float | None, most: float, least: float | None = None) -> None:
        """Hold a time (ms) against its bound. One that never came is a fault; one that came late is ``late``."""
        if value is None:
            self.faults.append(f"{what}: never")
        elif value > most:
            self.late.append(f"{what}: {value:.1f} ms, bound {most:g} ms")
            self.late_ms.append(value - most)
        elif least is not None and value < least:
            self.faults.append(f"{what}: {value:.1f} ms, not before {least:g} ms")

    def expired(self, what: str, count: int, deadline_ms: float, usual_ms: float) -> None:
        """Rounds that a watchdog ended with nothing done to anybody: each was late by the deadline, less what a round takes."""
        if count:
            self.late.append(f"{what}: {count} rounds expired without a fault")
            self.late_ms.append(deadline_ms - usual_ms)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note ``otherwise`` as a fault where something does not hold. For what no stall explains."""
        if not holds:
            self.faults.append(otherwise)

    @property
    def verdict(self) -> Verdict:
        """
        GOOD: within every bound. WRONG: not. SKIPPED: could not run here.

        STALLED: only times are out of bound, each by less than the machine stood still: the drill says nothing, run it again.
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
        """Whether every time that is late is late by less than the machine stood still."""
        return all(ms < self.stall_ms for ms in self.late_ms)

    @property
    def wrong(self) -> list[str]:
        """What speaks against it, in words."""
        drafts = [f"{self.wrong_drafts} wrong drafts"] if self.wrong_drafts else []
        return [*drafts, *self.faults, *self.late, *(f"left over: {leak}" for leak in self.leaks)]
