# SPDX-License-Identifier: Apache-2.0
"""What measures stalls beside drills and tests: each processor on its own, with the times, and hardly a load."""

from __future__ import annotations

import mmap
import signal
import time

from collections.abc import Callable, Iterator

import pytest

from dsv41_rehearse import proc
from dsv41_rehearse.drills.stalls import Stalls
from dsv41_rehearse.drills.stallwatch import BYTES, HEAD, KEPT, STALL
from dsv41_rehearse.drills.timed import Window


MS = 1_000_000


@pytest.fixture
def stalls() -> Iterator[Stalls]:
    with Stalls() as made:
        yield made


def stand_still(stalls: Stalls, which: int, seconds: float) -> Window:
    """One of the processors stands still for whoever measures it: its process is stopped."""
    began = time.monotonic_ns()
    stalls.processes[which].send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    stalls.processes[which].send_signal(signal.SIGCONT)
    return Window(began, time.monotonic_ns())


def test_a_stall_of_any_processor_is_seen_at_its_time(stalls: Stalls) -> None:
    for which in range(len(stalls.processes)):
        window = stand_still(stalls, which, 0.3)
        time.sleep(0.05)
        assert 280 <= stalls.longest_ms(window) <= (window.until_ns - window.since_ns) / MS
        half = Window(window.since_ns, window.since_ns + 150 * MS)
        assert 130 <= stalls.longest_ms(half) <= 150, "only what lies within counts"
        assert stalls.longest_ms() >= 280


def test_a_stall_that_is_not_over_counts_as_far_as_it_went(stalls: Stalls) -> None:
    stalls.processes[0].send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    assert stalls.longest_ms() >= 280
    stalls.processes[0].send_signal(signal.SIGCONT)


def noted(stalls: Stalls, *times: tuple[int, int]) -> Callable[[int, int], float]:
    """Have one of them note stalls from and to these times, ms; return what gives the longest of a window."""
    notes = stalls._notes
    assert isinstance(notes, mmap.mmap)
    for number in range(len(stalls.processes)):
        HEAD.pack_into(notes, number * BYTES, 0, 0)
    stalls.processes[0].kill()
    stalls.processes[0].wait()
    base = 1_000_000 * MS
    for index, (since, until) in enumerate(times):
        STALL.pack_into(notes, HEAD.size + index * STALL.size, base + since * MS, base + until * MS)
    HEAD.pack_into(notes, 0, len(times), 0)
    return lambda since, until: stalls.longest_ms(Window(base + since * MS, base + until * MS))


def test_those_that_overlap_are_one_and_others_are_not(stalls: Stalls) -> None:
    longest = noted(stalls, (0, 100), (90, 150), (158, 200), (300, 420))
    assert longest(0, 1000) == 200, "a nap apart: nothing was measured in between"
    assert longest(250, 1000) == 120
    assert longest(350, 400) == 50
    assert longest(210, 290) == 0


def test_naps_that_are_late_one_after_the_other_are_a_busy_machine(stalls: Stalls) -> None:
    busy = [(at, at + 8) for at in range(0, 900, 18)]
    longest = noted(stalls, *busy, (910, 940), (942, 949), (950, 980))
    assert longest(0, 900) == 8, "each by itself: nothing stood still for longer"
    assert stalls.summed_ms(Window(1_000_000 * MS, 1_000_900 * MS)) == 0
    assert longest(0, 1000) == 70
    assert longest(935, 975) == 40, "a piece of a long one is one of it"


def test_what_takes_no_stall_for_time_is_held_against_all_of_one_processors(stalls: Stalls) -> None:
    noted(stalls, (0, 10), (20, 32), (50, 60))
    if len(stalls.processes) > 1:
        notes, base = stalls._notes, 1_000_000 * MS
        assert isinstance(notes, mmap.mmap)
        stalls.processes[1].kill()
        stalls.processes[1].wait()
        STALL.pack_into(notes, BYTES + HEAD.size, base, base + 15 * MS)
        HEAD.pack_into(notes, BYTES, 1, 0)
    base = 1_000_000 * MS
    assert stalls.summed_ms(Window(base, base + 100 * MS)) == 32, "not those of another one besides"
    assert stalls.summed_ms(Window(base + 25 * MS, base + 55 * MS)) == 12


def test_one_that_measures_and_dies_excuses_nothing(stalls: Stalls) -> None:
    for process in stalls.processes:
        process.kill()
        process.wait()
    window = Window(time.monotonic_ns(), time.monotonic_ns() + 1000 * MS)
    time.sleep(0.3)
    assert stalls.longest_ms(window) < 50


def test_it_keeps_the_newest_and_no_more(stalls: Stalls) -> None:
    notes = stalls._notes
    assert isinstance(notes, mmap.mmap)
    assert HEAD.size + KEPT * STALL.size == BYTES
    stalls.processes[0].kill()
    stalls.processes[0].wait()
    base = 1_000_000 * MS
    for index in range(KEPT + 2):
        STALL.pack_into(
            stalls._notes,
            HEAD.size + index % KEPT * STALL.size,
            base + index * MS * 100,
            base + index * MS * 100 + 7 * MS,
        )
    HEAD.pack_into(notes, 0, KEPT + 2, 0)
    assert stalls.longest_ms(Window(base, base + 150 * MS)) == 0
    assert stalls.longest_ms(Window(base + 150 * MS, base + 250 * MS)) == 7
    assert stalls.longest_ms(Window(base + (KEPT + 1) * 100 * MS, base + (KEPT + 2) * 100 * MS)) == 7


def test_it_costs_next_to_nothing(stalls: Stalls) -> None:
    """Processor time, so that no stall of the machine counts."""
    time.sleep(0.3)  # beyond their beginning
    before = [proc.cpu_seconds(process.pid) for process in stalls.processes]
    time.sleep(2.0)
    used = sum(proc.cpu_seconds(one.pid) - cpu for one, cpu in zip(stalls.processes, before, strict=True))
    assert used / 2.0 < 0.02 * len(stalls.processes), f"{used * 50:.1f} % of a core"


def test_they_end_with_it() -> None:
    with Stalls() as other:
        assert all(process.poll() is None for process in other.processes)
        window = stand_still(other, 0, 0.2)
        time.sleep(0.05)
    assert all(process.returncode == -signal.SIGKILL for process in other.processes)
    now = time.monotonic_ns()
    assert other.longest_ms(window) >= 180, "what was noted is kept"
    assert other.longest_ms(Window(now, now + 1000 * MS)) == 0
