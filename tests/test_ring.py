# SPDX-License-Identifier: Apache-2.0
"""The row ring against a model of it: pieces never overlap, are freed in order, and what room promises can be taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from engine_native import native
from hypothesis import given, settings
from hypothesis import strategies as st


RING_BYTES = 1000
SLOTS = 8


@dataclass
class Model:
    """Pieces in use, by round, oldest first."""

    base: int
    pieces: dict[int, tuple[int, int]] = field(default_factory=dict)
    next: int = 0

    def take(self, offset: int, size: int) -> None:
        for at, other in self.pieces.values():
            assert size == 0 or other == 0 or offset + size <= at or at + other <= offset, "pieces overlap"
        assert offset + size <= RING_BYTES
        self.pieces[self.next] = (offset, size)
        self.next = (self.next + 1) & 0xFFFF_FFFF

    def free_oldest(self) -> int:
        oldest = next(iter(self.pieces))
        del self.pieces[oldest]
        return oldest


def new_ring(base: int) -> tuple[Any, Model]:
    module = native()
    ring = module.ffi.new("struct hfe_ring *")
    module.lib.hfe_ring_init(ring, RING_BYTES, SLOTS, base)
    return ring, Model(base, next=(base + 1) & 0xFFFF_FFFF)


SIZES = st.integers(0, RING_BYTES)
STEPS = st.lists(
    st.one_of(st.tuples(st.just("take"), SIZES, SIZES), st.tuples(st.just("free"), st.integers(1, SLOTS), st.just(0))),
    max_size=80,
)


@settings(max_examples=400, deadline=None)
@given(base=st.sampled_from([0, 1000, 2**31 - 5, 2**32 - 5]), steps=STEPS)
def test_pieces_never_overlap_and_room_keeps_its_promise(base: int, steps: list[tuple[str, int, int]]) -> None:
    module = native()
    lib = module.lib
    ring, model = new_ring(base)
    for what, first, second in steps:
        if what == "free":
            retired = None
            for _ in range(min(first, len(model.pieces))):
                retired = model.free_oldest()
            if retired is not None:
                lib.hfe_ring_free(ring, retired)
            if not any(size for _, size in model.pieces.values()):
                assert lib.hfe_ring_room(ring, 0) == RING_BYTES, "empty, so all of it can be had"
            continue
        if len(model.pieces) >= SLOTS - 1:
            continue
        reserve, size = first, second
        room = int(lib.hfe_ring_room(ring, reserve))
        size = min(size, room)
        offset = lib.hfe_ring_take(ring, size)
        assert offset >= 0, "room said that it fits"
        model.take(offset, size)
        if size and room:
            assert lib.hfe_ring_fits(ring, reserve), "and that the reserve fits behind it"
            model.take(lib.hfe_ring_take(ring, reserve), reserve)


def test_a_piece_goes_to_the_start_where_it_does_not_fit_behind() -> None:
    lib = native().lib
    ring, _ = new_ring(0)
    assert [lib.hfe_ring_take(ring, 400), lib.hfe_ring_take(ring, 500)] == [0, 400]
    lib.hfe_ring_free(ring, 1)
    assert lib.hfe_ring_take(ring, 300) == 0
    assert lib.hfe_ring_room(ring, 0) == 100, "between the newest and the oldest"
    assert not lib.hfe_ring_fits(ring, 101)
    assert lib.hfe_ring_take(ring, 101) < 0
    lib.hfe_ring_free(ring, 2)
    assert lib.hfe_ring_room(ring, 0) == 700
    lib.hfe_ring_free(ring, 3)
    assert lib.hfe_ring_take(ring, 1000) == 0, "empty: back to the start"


def test_a_full_ring_is_not_an_empty_one() -> None:
    lib = native().lib
    ring, _ = new_ring(0)
    assert [lib.hfe_ring_take(ring, size) for size in (400, 600)] == [0, 400]
    lib.hfe_ring_free(ring, 1)
    assert lib.hfe_ring_take(ring, 400) == 0
    assert lib.hfe_ring_room(ring, 0) == 0
    assert not lib.hfe_ring_fits(ring, 1)


@pytest.mark.parametrize("base", [0, 2**32 - 3])
def test_rounds_without_rows_take_no_room(base: int) -> None:
    lib = native().lib
    ring, _ = new_ring(base)
    assert lib.hfe_ring_take(ring, 0) == 0
    assert lib.hfe_ring_take(ring, 1000) == 0
    assert lib.hfe_ring_take(ring, 0) >= 0
    lib.hfe_ring_free(ring, (base + 1) & 0xFFFF_FFFF)
    assert lib.hfe_ring_room(ring, 0) == 0
    lib.hfe_ring_free(ring, (base + 2) & 0xFFFF_FFFF)
    assert lib.hfe_ring_room(ring, 0) == 1000
