# SPDX-License-Identifier: Apache-2.0
"""What round loops counted, summed over sessions: a session that ends must not take its counts out of the totals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hostflag.verdicts import Verdict
from proxyd._daemon import ffi, lib


if TYPE_CHECKING:
    from proxyd.sessions.roundloop import RoundLoop


_WORD: Final = ffi.sizeof("uint64_t")
_N_COUNTERS: Final = ffi.sizeof("struct hfd_counters") // _WORD


class Tally:
    """``struct hfd_counters`` and one ``struct hfd_histogram_view`` a histogram id, to which loops are added."""

    def __init__(self) -> None:
        self.counters: Any = ffi.new("struct hfd_counters *")
        self.histograms: list[Any] = [ffi.new("struct hfd_histogram_view *") for _ in range(lib.HFD_HISTOGRAM_MAX)]

    def add_loop(self, loop: RoundLoop) -> None:
        """Add what a loop has counted so far."""
        self._add(loop.counters(), [loop.histogram(number) for number in range(len(self.histograms))])

    def add(self, other: Tally) -> None:
        self._add(other.counters, other.histograms)

    def rounds(self) -> dict[str, int]:
        """Return how many rounds ended with each verdict; verdicts without any are left out."""
        counts = {verdict.name: int(self.counters.rounds[verdict]) for verdict in Verdict}
        return {name: count for name, count in counts.items() if count}

    def _add(self, counters: Any, histograms: list[Any]) -> None:
        # Every field of hfd_counters is a uint64_t that only grows, so that they can be added up without naming each.
        total, part = ffi.cast("uint64_t *", self.counters), ffi.cast("uint64_t *", counters)
        for index in range(_N_COUNTERS):
            total[index] += part[index]
        for mine, more in zip(self.histograms, histograms, strict=True):
            mine.count += more.count
            mine.sum_ns += more.sum_ns
            mine.max_ns = max(mine.max_ns, more.max_ns)
            for index in range(lib.HFD_BUCKETS):
                mine.bucket[index] += more.bucket[index]
