# SPDX-License-Identifier: Apache-2.0
"""Where the engine's thread runs while hand-offs are measured: bare C's and the product's on the same processor, shared with nobody."""

from __future__ import annotations

import contextlib
import os

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


@dataclass(frozen=True)
class Cores:
    """
    ``engine``: the processor of the engine's thread. ``others``: for everybody else, without those that share its core.

    Two threads of one core take about 1.6 times as long each: who happens to share one would decide every ratio.
    """

    engine: int
    others: frozenset[int]

    @classmethod
    def pick(cls) -> Cores | None:
        """Return a choice among the processors that this process may use; None where they are too few to choose."""
        usable = os.sched_getaffinity(0)
        for engine in sorted(usable, reverse=True):
            others = usable - _siblings(engine)
            if len(others) >= 4:
                return cls(engine, frozenset(others))
        return None

    @contextlib.contextmanager
    def for_the_rest(self) -> Iterator[None]:
        """Keep whatever is started within off the engine's core: processes and threads inherit that."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.others)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    @contextlib.contextmanager
    def as_engine(self) -> Iterator[None]:
        """Have the calling thread on the engine's processor. Nothing is to be started within."""
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.engine})
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def _siblings(cpu: int) -> set[int]:
    """Return the processors of its core. A virtual machine may say that each has one of its own: then the neighbour counts, too."""
    try:
        listed = Path(TOPOLOGY.format(cpu)).read_text(encoding="ascii")
    except OSError:
        listed = str(cpu)
    found = {cpu}
    for part in listed.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found if len(found) > 1 else found | {cpu ^ 1}
