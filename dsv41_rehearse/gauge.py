# SPDX-License-Identifier: Apache-2.0
"""What engine and daemon hold, looked at again and again while they work, to see whether it is flat."""

from __future__ import annotations

import os
import statistics

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from dsv41_rehearse import proc


ENDS: Final = 5  # how many of the first and the last looks make up an end
# Arenas and Python's own maps come and go, and the rehearsal's own accounts grow: over 160 kills tracemalloc saw 15 KB a kill, nearly
# all of it samples, one a step, while sessions and channels stayed at 5. A region is 16 MiB and several maps.
MAPS_MAY: Final = 12
MIB_MAY: Final = 12.0


@dataclass(frozen=True)
class Level:
    """Of the engine: descriptors, maps, threads, MiB of its own, maps and descriptors of shared memory; the daemon's after them."""

    fds: float
    maps: float
    threads: float
    rss_mib: float
    shared_memory: float
    daemon_fds: float
    daemon_threads: float
    daemon_rss_mib: float

    def __str__(self) -> str:
        return (
            f"{self.fds:g} fds, {self.maps:g} maps, {self.threads:g} threads, {self.rss_mib:.0f} MiB; "
            f"daemon {self.daemon_fds:g} fds, {self.daemon_threads:g} threads, {self.daemon_rss_mib:.0f} MiB"
        )


class Gauge:
    """Keeps every look."""

    def __init__(self) -> None:
        self.levels: list[Level] = []

    def look(self, daemon_pid: int) -> None:
        """Look at this process and a daemon. One that is gone by now is left out."""
        try:
            daemon, daemon_mib = proc.footprint(daemon_pid), proc.rss_private_mib(daemon_pid)
        except OSError:
            return
        own = proc.footprint()
        self.levels.append(
            Level(
                own.fds, own.maps, own.threads, proc.rss_private_mib(os.getpid()), own.shared_memory,
                daemon.fds, daemon.threads, daemon_mib,
            )
        )  # fmt: skip

    @property
    def newest(self) -> Level | None:
        """The last look."""
        return self.levels[-1] if self.levels else None

    def ends(self) -> tuple[Level | None, Level | None]:
        """Return the medians of the first and of the last looks; the very first kill loads what is loaded once, and is left out."""
        looks = self.levels[1:] if len(self.levels) > 2 * ENDS else self.levels
        return _median(looks[:ENDS]), _median(looks[-ENDS:])


def _median(levels: Sequence[Level]) -> Level | None:
    if not levels:
        return None
    names = asdict(levels[0])
    return Level(**{name: statistics.median(getattr(level, name) for level in levels) for name in names})


def grown(first: Level, last: Level) -> list[str]:
    """Return what grew from the first looks to the last, in words."""
    may = {"maps": MAPS_MAY, "rss_mib": MIB_MAY, "daemon_rss_mib": MIB_MAY}
    found = []
    for name, was in asdict(first).items():
        now = getattr(last, name)
        if now > was + may.get(name, 0):
            found.append(f"{name} grew from {was:g} to {now:g}")
    return found
