# SPDX-License-Identifier: Apache-2.0
"""A daemon's hand on a region's words and ring, for tests: it maps what a daemon maps, and moves when the test says so."""

from __future__ import annotations

import time

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine_native import native

from hostflag import region as regions
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict


PATIENCE_S: Final = 30.0  # for what has no bound of its own; a loaded machine is slow


def until(what: Callable[[], Any], why: str, patience_s: float = PATIENCE_S) -> Any:
    """Return what ``what`` returns once it is true."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if result := what():
            return result
        time.sleep(0.001)
    raise AssertionError(f"not within {patience_s:g} s: {why}")


def past(a: int, b: int) -> int:
    """How far a is past b; cyclic."""
    return ((a - b + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000


@dataclass(frozen=True)
class Shipment:
    """One request of a round as it lies in the ring. ``rows``: [rows][row_bytes]."""

    slot: int
    generation: int
    batch_index: int
    flags: int
    positions: list[int]
    tokens: list[int]
    rows: npt.NDArray[np.uint8]


class Hand:
    """A daemon's hand on the words: it maps what a daemon maps, and moves when the test says so."""

    def __init__(self, fd: int) -> None:
        self._module = native()
        self._lib: Any = self._module.lib
        self.region: Any = self._lib.hft_map(fd)
        assert self.region, "the region cannot be mapped"
        self.geometry = regions.check(fd).geometry

    def close(self) -> None:
        if self.region:
            self._lib.hft_unmap(self.region)
            self.region = None

    def word(self, word: Word) -> int:
        return int(self._lib.hft_word(self.region, word))

    def phase(self, phase: Phase) -> None:
        self._lib.hft_phase(self.region, phase)

    def beat(self) -> None:
        self._lib.hft_beat(self.region)

    def see(self, t: int) -> None:
        """Wait until round t is submitted and gathered."""

        def there() -> bool:
            return all(past(self.word(word), t) >= 0 for word in (Word.SUBMITTED, Word.GATHERED))

        until(there, f"round {t} gathered")

    def reply(self, t: int, ids: Sequence[int]) -> None:
        self._lib.hft_reply(self.region, t, list(ids), len(ids), time.monotonic_ns())

    def decide(self, t: int, verdict: Verdict) -> bool:
        return bool(self._lib.hf_decide(self.region, t, verdict))

    def release(self, t: int) -> None:
        self._lib.hf_release(self.region, t)

    def retire(self, t: int) -> None:
        self._lib.hft_retire(self.region, t)

    def finish(self, t: int, verdict: Verdict = Verdict.OK, ids: Sequence[int] = ()) -> None:
        """Do a whole round: see it, reply, decide, release, retire."""
        self.see(t)
        if ids:
            self.reply(t, ids)
        self.decide(t, verdict)
        self.release(t)
        self.retire(t)

    def context_only(self, t: int) -> bool:
        return bool(self._lib.hft_round(self.region, t).flags & self._lib.HF_ROUND_CONTEXT_ONLY)

    def array(self, t: int, name: str, dtype: type[np.generic], count: int) -> list[int]:
        """Return an array of a slot's GPU header."""
        at = int(getattr(self.region.layout, name))
        data = self._module.ffi.buffer(self._lib.hft_slot(self.region, t) + at, count * np.dtype(dtype).itemsize)
        return [int(value) for value in np.frombuffer(bytes(data), dtype)]

    def shipped(self, t: int) -> list[Shipment]:
        """Return copies of everything round t has in the ring."""
        header = self._lib.hft_round(self.region, t)
        table = self._lib.hft_requests(self.region, t)
        assert header.round == t
        span = self._module.ffi.new("struct hf_ring_span *")
        self._lib.hf_ring_span_of(self._module.ffi.addressof(self.region.geometry), header.n_rows, span)
        base = self.region.base + self.region.layout.rows + header.ring_offset
        n, width = int(header.n_rows), self.geometry.row_bytes
        positions = np.frombuffer(bytes(self._module.ffi.buffer(base + span.positions, n * 8)), np.int64)
        tokens = np.frombuffer(bytes(self._module.ffi.buffer(base + span.tokens, n * 4)), np.int32)
        rows = np.frombuffer(bytes(self._module.ffi.buffer(base + span.rows, n * width)), np.uint8).reshape(n, width)
        shipments, at = [], 0
        for one in table[0 : header.n_requests]:
            assert one.first_row == at
            here = slice(at, at + one.rows)
            shipments.append(
                Shipment(one.request_slot, one.generation, one.batch_index, one.flags,
                         positions[here].tolist(), tokens[here].tolist(), rows[here])
            )  # fmt: skip
            at += one.rows
        assert at == n
        return shipments
