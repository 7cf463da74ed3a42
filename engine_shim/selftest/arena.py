# SPDX-License-Identifier: Apache-2.0
"""The memory of a self-test's steps: one set of device arrays that every step uses again, and patterns that no two steps share."""

from __future__ import annotations

import struct

from dataclasses import dataclass
from typing import Any, Final

from engine_shim._engine import ffi
from engine_shim.batch import Batch
from engine_shim.cudastream import TO_DEVICE, TO_HOST, CudaStream
from engine_shim.echo import echo_drafts
from hostflag.messages import Geometry


SOURCES: Final = 3
WORD: Final = 8
ODD: Final = 0x9E37_79B9_7F4A_7C15
ALL: Final = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True)
class Places:
    """Where the arrays of a step are in its memory: bytes from its start. ``widths``: of the sources; ``pitches``: their rows apart."""

    positions: int
    tokens: int
    num_sampled: int
    num_rejected: int
    last_sampled: int
    next_prefill: int
    sources: tuple[int, ...]
    widths: tuple[int, ...]
    pitches: tuple[int, ...]
    bytes: int


def places_of(geometry: Geometry, rows: int, requests: int) -> Places:
    """Return where everything is for steps of so many rows and requests."""
    at, slots = 0, geometry.state_slots
    arrays = {
        "positions": rows * 8,
        "tokens": rows * 4,
        "num_sampled": requests * 4,
        "num_rejected": requests * 4,
        "last_sampled": slots * 8,
        "next_prefill": slots * 4,
    }
    starts: dict[str, int] = {}
    for name, nbytes in arrays.items():
        starts[name] = at
        at += (nbytes + WORD - 1) // WORD * WORD
    words = geometry.row_bytes // WORD
    shares = [words // SOURCES * WORD] * (SOURCES - 1) if words >= SOURCES else []
    widths = (*shares, geometry.row_bytes - sum(shares))
    # Rows apart by more than they are wide, as views of larger tensors are: one 2D copy a source.
    pitches = tuple((width + WORD - 1) // WORD * WORD + WORD * (index + 1) for index, width in enumerate(widths))
    sources = []
    for pitch in pitches:
        sources.append(at)
        at += pitch * rows
    return Places(**starts, sources=tuple(sources), widths=widths, pitches=pitches, bytes=at)


class Arena:
    """
    ``lanes`` steps can be in flight: each has pinned memory of its own to come from and to report to; device memory they share.

    Everything a step does is enqueued: its pattern to the device, its round, its drafts back.
    """

    def __init__(self, stream: CudaStream, geometry: Geometry, *, requests: int, rows_each: int, lanes: int) -> None:
        self._stream = stream
        self._geometry = geometry
        self._rows_each = rows_each
        self.requests = requests
        self._rows = requests * rows_each
        self._places = places_of(geometry, max(self._rows, 1), requests)
        self._out_bytes = requests * geometry.drafts * WORD
        self.lanes = lanes
        self._device = stream.alloc(self._places.bytes)
        self._drafts = stream.alloc(self._out_bytes)
        self._staged = [stream.host_alloc(self._places.bytes) for _ in range(lanes)]
        self._returned = [stream.host_alloc(self._out_bytes) for _ in range(lanes)]
        self.batch = Batch(requests)
        self._fill_batch()

    def _fill_batch(self) -> None:
        places, base = self._places, self._device
        for index in range(self.requests):
            self.batch.set_request(
                index, slot=index, generation=1, first_row=index * self._rows_each, rows=self._rows_each, draft=True
            )
        self.batch.n_requests = self.requests
        table = zip(places.sources, places.pitches, places.widths, strict=True)
        self.batch.set_sources([(base + start, pitch, width) for start, pitch, width in table])
        self.batch.set_arrays(
            positions=base + places.positions, tokens=base + places.tokens, num_sampled=base + places.num_sampled,
            num_rejected=base + places.num_rejected, last_sampled=base + places.last_sampled,
            next_prefill=base + places.next_prefill, drafts_out=self._drafts,
        )  # fmt: skip

    def stage(self, number: int) -> list[list[int]]:
        """
        Enqueue the pattern of step ``number`` to the device, and return the drafts that a daemon which finds it answers.

        The step ``lanes`` before has to be over.
        """
        view = _view(self._staged[number % self.lanes], self._places.bytes)
        expected = [self._stage_request(view, number, index) for index in range(self.requests)]
        self._stream.copy(self._device, self._staged[number % self.lanes], self._places.bytes, TO_DEVICE)
        return expected

    def _stage_request(self, view: Any, number: int, index: int) -> list[int]:
        places, geometry, each = self._places, self._geometry, self._rows_each
        rejected = (number + index) % each if each else 0
        anchor = (number * 31 + index) % geometry.vocab
        struct.pack_into("<i", view, places.num_sampled + index * 4, 1)
        struct.pack_into("<i", view, places.num_rejected + index * 4, rejected)
        struct.pack_into("<q", view, places.last_sampled + index * 8, anchor)
        rows = [self._stage_row(view, number, index * each + offset) for offset in range(each)]
        return echo_drafts(rows[: each - rejected], anchor, geometry.drafts, geometry.vocab)

    def _stage_row(self, view: Any, number: int, row: int) -> tuple[int, int, bytes]:
        places, nbytes = self._places, self._geometry.row_bytes
        word = ((number * self._rows + row + 1) * ODD) & ALL
        content = (word.to_bytes(WORD, "little") * (nbytes // WORD + 1))[:nbytes]
        position, token = number * 100 + row, (number * 7 + row) % self._geometry.vocab
        struct.pack_into("<q", view, places.positions + row * 8, position)
        struct.pack_into("<i", view, places.tokens + row * 4, token)
        at = 0
        for start, pitch, width in zip(places.sources, places.pitches, places.widths, strict=True):
            view[start + row * pitch : start + row * pitch + width] = content[at : at + width]
            at += width
        return position, token, content

    def fetch(self, number: int) -> int:
        """Enqueue the copy of the step's drafts to where ``returned`` finds them; return a marker of that."""
        self._stream.copy(self._returned[number % self.lanes], self._drafts, self._out_bytes, TO_HOST)
        return self._stream.marker()

    def returned(self, number: int) -> list[list[int]]:
        """Return the drafts of a step whose marker is reached."""
        ids = struct.unpack(f"<{self._out_bytes // WORD}q", _view(self._returned[number % self.lanes], self._out_bytes))
        k = self._geometry.drafts
        return [list(ids[index * k : (index + 1) * k]) for index in range(self.requests)]

    def close(self) -> None:
        """Give everything back. The stream is past every step."""
        for memory in (*self._staged, *self._returned):
            self._stream.host_free(memory)
        for memory in (self._device, self._drafts):
            self._stream.free(memory)


def _view(address: int, nbytes: int) -> Any:
    return ffi.buffer(ffi.cast("char *", address), nbytes)
