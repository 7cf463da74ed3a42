# SPDX-License-Identifier: Apache-2.0
"""A step of the bench's engine: which requests it has, and the device memory that it hands over."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.gpu.card import upload
from engine_shim import Batch
from engine_shim.cudastream import CudaStream
from hostflag.messages import Geometry


ROW_BYTES: Final = 30_720
SOURCES: Final = 3  # hidden states of three layers make up a row
DRAFTS: Final = 5
ROWS: Final = DRAFTS + 1  # of a decoding request
VOCAB: Final = 129_280
MODEL: Final = "bench"
GEOMETRY: Final = Geometry(row_bytes=ROW_BYTES, drafts=DRAFTS, vocab=VOCAB)


@dataclass(frozen=True, slots=True)
class Item:
    """A request of a step. ``prefill``: its rows are prompt; ``to_come``: prompt tokens behind them."""

    slot: int
    first_row: int
    rows: int
    draft: bool = True
    prefill: bool = False
    to_come: int = 0

    def shipped(self, window: int) -> int:
        """Return how many of its rows, the newest, matter to a drafter."""
        return self.rows if not self.prefill else max(0, min(self.rows, window - self.to_come))


def decoding(requests: int, rows: int = ROWS) -> list[Item]:
    """Return a step of so many requests that all decode; their rows lie together."""
    return [Item(slot, slot * rows, rows) for slot in range(requests)]


class Tensors:
    """
    Device memory of an engine, by address. ``rows``: [max_rows][row_bytes]; ``sources``: the same rows in three arrays.

    ``positions`` int64, ``tokens`` int32 [max_rows]; ``drafts``: drafts_out, int64 [max_requests][drafts].
    """

    def __init__(self, stream: CudaStream, max_rows: int, geometry: Geometry = GEOMETRY) -> None:
        self.max_rows = max_rows
        self.width = geometry.row_bytes // SOURCES
        self.sources = [stream.alloc(max_rows * self.width) for _ in range(SOURCES)]
        self.rows = stream.alloc(max_rows * geometry.row_bytes)
        self.positions, self.tokens = stream.alloc(max_rows * 8), stream.alloc(max_rows * 4)
        self.sampled, self.rejected = stream.alloc(geometry.max_requests * 4), stream.alloc(geometry.max_requests * 4)
        self.last, self.following = stream.alloc(geometry.state_slots * 8), stream.alloc(geometry.state_slots * 4)
        self.drafts = stream.alloc(geometry.max_requests * geometry.drafts * 8)
        upload(
            stream,
            [
                (self.positions, array("q", range(max_rows)).tobytes()),
                (self.tokens, array("i", [7] * max_rows).tobytes()),
                (self.sampled, array("i", [1] * geometry.max_requests).tobytes()),
                (self.last, array("q", [9] * geometry.state_slots).tobytes()),
                (self.following, array("i", [9] * geometry.state_slots).tobytes()),
            ],
        )

    def bind(self, batch: Batch) -> None:
        """Let a batch take its memory from here."""
        batch.set_sources([(source, self.width, self.width) for source in self.sources])
        batch.set_arrays(
            positions=self.positions, tokens=self.tokens, num_sampled=self.sampled, num_rejected=self.rejected,
            last_sampled=self.last, next_prefill=self.following, drafts_out=self.drafts,
        )  # fmt: skip


def fill(batch: Batch, items: Sequence[Item]) -> None:
    """Write a step into a batch."""
    for index, item in enumerate(items):
        batch.set_request(
            index, slot=item.slot, generation=1, first_row=item.first_row, rows=item.rows, draft=item.draft,
            prefill=item.prefill, to_come=item.to_come,
        )  # fmt: skip
    batch.n_requests = len(items)
