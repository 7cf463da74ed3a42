# SPDX-License-Identifier: Apache-2.0
"""Whether a loop moves, by a clock that the test turns."""

from __future__ import annotations

import errno
import mmap
import os
import struct

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from proxyd_engine import GEOMETRY

from hostflag import geometry as geometries
from hostflag import region as regions
from hostflag._hostflag import ffi, lib
from proxyd.sessions.pulse import Pulse
from proxyd.sessions.roundloop import RoundLoop


class Loop:
    """A loop that does what the test says, on a region of its own."""

    def __init__(self) -> None:
        self.fd = regions.create(GEOMETRY)
        self.beat, self.last = 1, 0
        self._map = mmap.mmap(self.fd, 0)
        layout = ffi.new("struct hf_layout *")
        assert lib.hf_layout_of(geometries.to_c(GEOMETRY), layout) == 0
        self._words = int(layout.engine_words)

    def beats(self) -> int:
        return self.beat

    def done(self) -> int:
        return self.last

    def gather(self, t: int) -> None:
        struct.pack_into("<I", self._map, self._words + lib.HF_LINE, t)

    def submit(self, t: int) -> None:
        struct.pack_into("<I", self._map, self._words, t)

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def pulse(loop: Loop) -> Iterator[Pulse]:
    made = Pulse(loop.fd, network_timeout_s=0.15)
    yield made
    made.close()


def looks(pulse: Pulse, loop: Loop, times: list[float], *, beating: bool = True) -> str | None:
    stand_in: Any = loop
    for now in times:
        loop.beat += beating
        pulse.look(cast("RoundLoop", stand_in), now)
    return pulse.stalled


def open_fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def region_maps() -> int:
    return sum("memfd:dsv41" in line for line in Path("/proc/self/maps").read_text().splitlines())


def every(seconds: float, step: float = 0.25) -> list[float]:
    return [number * step for number in range(round(seconds / step) + 1)]


def test_a_loop_that_beats(pulse: Pulse, loop: Loop) -> None:
    assert looks(pulse, loop, every(60)) is None


def test_a_loop_that_does_not(pulse: Pulse, loop: Loop) -> None:
    assert looks(pulse, loop, every(0.75), beating=False) is None
    assert looks(pulse, loop, [1.0, 1.25], beating=False) == "the round loop has not moved for 1.2 s"
    assert not pulse.beating
    assert looks(pulse, loop, [1.5]) is None


def test_a_pause_of_this_process_is_not_held_against_the_loop(pulse: Pulse, loop: Loop) -> None:
    """After SIGCONT, or a frozen container: loops stood still since everything did."""
    looks(pulse, loop, every(1))
    assert looks(pulse, loop, [1000.0], beating=False) is None
    assert looks(pulse, loop, [1000.25]) is None


@pytest.mark.parametrize("base", [0, 2**32 - 1])
def test_a_round_that_waits(pulse: Pulse, loop: Loop, base: int) -> None:
    loop.last = base
    loop.gather((base + 1) % 2**32)
    assert looks(pulse, loop, every(0.75)) is None
    assert looks(pulse, loop, [1.0, 1.25]) == "a gathered round has waited for 1.2 s"
    assert pulse.beating
    loop.last = (base + 1) % 2**32
    assert looks(pulse, loop, [1.5]) is None


def test_rounds_that_are_done_one_after_the_other_do_not_add_up(pulse: Pulse, loop: Loop) -> None:
    for number in range(20):
        loop.last = number
        loop.gather(number + 1)
        assert looks(pulse, loop, [0.25 * number]) is None


def test_a_reply_may_take_as_long_as_it_may(loop: Loop) -> None:
    patient = Pulse(loop.fd, network_timeout_s=10.0)
    loop.gather(1)
    assert looks(patient, loop, every(10)) is None
    assert looks(patient, loop, [10.25, 10.5]) is not None
    patient.close()


@pytest.mark.parametrize(("submitted", "done", "count"), [(0, 0, 0), (3, 1, 2), (1, 2**32 - 1, 2), (0, 1, 0)])
def test_rounds_in_flight(pulse: Pulse, loop: Loop, submitted: int, done: int, count: int) -> None:
    loop.submit(submitted)
    loop.last = done
    stand_in: Any = loop
    assert pulse.in_flight(cast("RoundLoop", stand_in)) == count


def test_it_lets_go(loop: Loop) -> None:
    before = open_fds()
    pulse = Pulse(loop.fd, 0.15)
    pulse.close()
    pulse.close()
    assert open_fds() == before


def test_without_a_descriptor_no_map_stays(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = region_maps()
    monkeypatch.setattr(os, "dup", full)
    with pytest.raises(OSError, match="Too many open files"):
        Pulse(loop.fd, 0.15)
    assert region_maps() == before


def test_what_is_no_region() -> None:
    fd = os.memfd_create("no region")
    before = open_fds()
    with pytest.raises(regions.RegionFault):
        Pulse(fd, 0.15)
    assert open_fds() == before
    os.close(fd)
