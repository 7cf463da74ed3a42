# SPDX-License-Identifier: Apache-2.0
"""The sessions of a run, one after the other: when each came, when the one before it was lost, when it drafted first."""

from __future__ import annotations

import time

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dsv41_rehearse import proc


POLL_S: Final = 0.002
RELEASES_KEPT: Final = 1 << 17  # rounds of a worker that is away for minutes in all


@dataclass
class SessionSeen:
    """
    One session. Times are CLOCK_MONOTONIC, ns, 0: not (yet). ``met_ns``: when the engine thread found it.

    ``lost_before_ns``, ``lost_before``: when and why the session before it was lost. ``first_ok_ns``: its first drafted round.
    ``cpu_s``: what its daemon had used by then, None where that could not be looked at.
    """

    id: int
    pid: int
    metrics: str | None
    lost_before_ns: int
    lost_before: str | None
    met_ns: int
    cpu_s: float | None
    first_ok_ns: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    """A drafting round that ended without its daemon: when it was gathered, and when the stream was past it. ns."""

    session: int
    verdict: str
    gathered_ns: int
    past_ns: int


@dataclass(frozen=True, slots=True)
class FellBack:
    """A drafting round that its daemon ended without drafts: when it was gathered, and when it was decided. ns."""

    session: int
    verdict: str
    gathered_ns: int
    decided_ns: int

    @property
    def took_ms(self) -> float:
        """How long the stream was parked for it."""
        return (self.decided_ns - self.gathered_ns) / 1e6


@dataclass
class Sessions:
    """Written by the engine thread, read by any. ``over``: the run is, whoever waits may stop."""

    seen: list[SessionSeen] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    fell_back: list[FellBack] = field(default_factory=list)
    over: bool = False
    drafted_gathered_ns: int = 0  # of the round that ``wait_drafted_after`` returned last
    _awaited_ns: int = 0
    _ok_ns: int = 0

    @property
    def newest(self) -> SessionSeen | None:
        """The newest one."""
        return self.seen[-1] if self.seen else None

    @property
    def newest_id(self) -> int | None:
        """Its id."""
        return self.seen[-1].id if self.seen else None

    def meet(self, session: int, pid: int, metrics: str | None, lost_ns: int, lost: str | None) -> None:
        """Note a new session."""
        try:
            cpu_s: float | None = proc.cpu_seconds(pid)
        except OSError:
            cpu_s = None
        self.seen.append(SessionSeen(session, pid, metrics, lost_ns, lost, time.monotonic_ns(), cpu_s))

    def drafted(self, session: int, gathered_ns: int, decided_ns: int) -> None:
        """Note a drafting round that ended OK."""
        newest = self.seen[-1]
        if newest.id == session and not newest.first_ok_ns:
            newest.first_ok_ns = decided_ns
        if self._awaited_ns and gathered_ns >= self._awaited_ns and not self._ok_ns:
            self.drafted_gathered_ns = gathered_ns
            self._ok_ns = decided_ns

    def released(self, release: Release) -> None:
        """Note a drafting round that the watchdog let go."""
        if len(self.releases) < RELEASES_KEPT:
            self.releases.append(release)

    def ended(self, round_: FellBack) -> None:
        """Note a drafting round that its daemon ended without drafts."""
        if len(self.fell_back) < RELEASES_KEPT:
            self.fell_back.append(round_)

    def recoveries_ms(self) -> list[float]:
        """Return for each session that followed a loss: from the loss to its first drafted round."""
        return [
            (one.first_ok_ns - one.lost_before_ns) / 1e6
            for one in self.seen[1:]
            if one.first_ok_ns and one.lost_before_ns
        ]

    def wait(self, what: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until something holds. False: not in time, or the run is over."""
        until = time.monotonic() + timeout_s
        while not what():
            if self.over or time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def wait_drafted_after(self, ns: int, timeout_s: float) -> int | None:
        """Wait for a drafted round that was gathered after ``ns``; return when it was decided, None: not in time. One thread."""
        self._ok_ns, self._awaited_ns = 0, ns
        self.wait(lambda: self._ok_ns != 0, timeout_s)
        self._awaited_ns = 0
        return self._ok_ns or None

    def wait_other_than(self, session: int, timeout_s: float) -> SessionSeen | None:
        """Wait until another session has drafted; return it, None: not in time."""
        self.wait(lambda: self.seen[-1].id != session and self.seen[-1].first_ok_ns != 0, timeout_s)
        newest = self.seen[-1]
        return newest if newest.id != session and newest.first_ok_ns else None
