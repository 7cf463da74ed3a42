# SPDX-License-Identifier: Apache-2.0
"""The daemon at rest and at an engine's usual pace: how much of a core it takes, and how late it wakes up."""

from __future__ import annotations

import random
import time

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dsv41_rehearse.bench_case import SIZES, Case
from dsv41_rehearse.bench_round import RoundPath, RoundSamples
from dsv41_rehearse.proc import cpu_percent_over, threads_cpu_ns
from dsv41_rehearse.samples import Spread


FURTHER: Final = 4  # sessions, to see what one more costs
QUIET_S: Final = 1.0  # what connecting started is over
PER_SECOND: Final = 25
GATHER_MS: Final = (27.0, 33.0)


@dataclass(frozen=True)
class Idle:
    """Percent of one core: the daemon with one idle session, and what each further one adds."""

    one_session: float
    further_session: float
    seconds: float


@dataclass(frozen=True)
class Pace:
    """25 rounds a second, gathered 30 ms +- 10 % after the submit. ``wake_us``: gathered to seen by the daemon."""

    cpu_percent: float
    wake_us: Spread
    round_us: Spread
    rounds: int
    failed: int


def idle(socket: Path, daemon_pid: int, case: Case, seconds: float, losses: Counter[str]) -> Idle:
    """Watch the daemon with one idle session, then with some more."""
    paths = [RoundPath(socket, case, "bench-idle-0", losses)]
    try:
        time.sleep(QUIET_S)
        one = cpu_percent_over(daemon_pid, seconds)
        paths += [RoundPath(socket, case, f"bench-idle-{number}", losses) for number in range(1, FURTHER + 1)]
        time.sleep(QUIET_S)
        all_of_them = cpu_percent_over(daemon_pid, seconds)
    finally:
        for path in paths:
            path.close()
    return Idle(one, round((all_of_them - one) / FURTHER, 4), seconds)


def pace(socket: Path, daemon_pid: int, case: Case, seconds: float, losses: Counter[str]) -> Pace:
    """Do rounds as an engine does whose steps take 40 ms."""
    gather = random.Random(case.seed)
    path = RoundPath(socket, case, "bench-pace", losses)
    samples, warm = RoundSamples(), RoundSamples()
    rows = next(iter(SIZES.values()))
    try:
        for _ in range(PER_SECOND):
            path.one(rows, int(gather.uniform(*GATHER_MS) * 1e6), warm)
        began, cpu = time.monotonic(), threads_cpu_ns(daemon_pid)
        due = began
        while due < began + seconds:
            path.one(rows, int(gather.uniform(*GATHER_MS) * 1e6), samples)
            due += 1 / PER_SECOND
            time.sleep(max(0.0, due - time.monotonic()))
        took = time.monotonic() - began
        percent = (threads_cpu_ns(daemon_pid) - cpu) / took / 1e7
    finally:
        path.close()
    return Pace(round(percent, 3), samples.wake.spread(), samples.round.spread(), len(samples.round), samples.failed)
