# SPDX-License-Identifier: Apache-2.0
"""Device memory of a stand-in engine, for tests: rows are a fixed function of key and position."""

from __future__ import annotations

import zlib

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_hand import Shipment

from engine_shim import Batch
from hostflag.messages import Geometry


@dataclass(frozen=True)
class Ask:
    """One request of a step. ``gap``: rows of nobody before its rows in the batch, so that its copies stand alone."""

    slot: int
    rows: int
    first: int = 0
    generation: int = 1
    draft: bool = True
    prefill: bool = False
    to_come: int = 0
    rejected: int = 0
    gap: int = 0


@dataclass
class Device:
    """Device memory of a stand-in engine: rows are a fixed function of key and position."""

    geometry: Geometry
    sources: int = 3
    kept: list[Any] = field(default_factory=list)

    def row(self, slot: int, generation: int, position: int) -> npt.NDArray[np.uint8]:
        """Return the row of a position, [row_bytes]."""
        seed = zlib.crc32(f"{slot}/{generation}/{position}".encode())
        return np.random.default_rng(seed).integers(0, 256, self.geometry.row_bytes, np.uint8)

    @staticmethod
    def token(slot: int, position: int) -> int:
        return (slot * 1009 + position * 7) % 1000

    def fill(self, batch: Batch, asks: Sequence[Ask], *, drafts: bool = True) -> npt.NDArray[np.int64]:
        """Fill a batch, in arrays of its own. Return drafts_out, [requests][drafts], all -1."""
        g = self.geometry
        total = sum(ask.gap + ask.rows for ask in asks)
        rows = np.zeros((max(total, 1), g.row_bytes), np.uint8)
        positions = np.full(max(total, 1), -1, np.int64)
        tokens = np.full(max(total, 1), -1, np.int32)
        at = 0
        for index, ask in enumerate(asks):
            at += ask.gap
            batch.set_request(
                index, slot=ask.slot, generation=ask.generation, first_row=at, rows=ask.rows,
                draft=ask.draft, prefill=ask.prefill, to_come=ask.to_come,
            )  # fmt: skip
            for offset in range(ask.rows):
                rows[at + offset] = self.row(ask.slot, ask.generation, ask.first + offset)
                positions[at + offset] = ask.first + offset
                tokens[at + offset] = self.token(ask.slot, ask.first + offset)
            at += ask.rows
        batch.n_requests = len(asks)
        sampled = np.array([0 if ask.prefill else ask.rows - ask.rejected for ask in asks] or [0], np.int32)
        rejected = np.array([ask.rejected for ask in asks] or [0], np.int32)
        last = np.arange(100, 100 + g.state_slots, dtype=np.int64)
        following = np.arange(200, 200 + g.state_slots, dtype=np.int32)
        out = np.full((max(len(asks), 1), g.drafts), -1, np.int64)
        width = g.row_bytes // self.sources
        # Sources with a pitch of their own, as views of larger tensors have.
        columns = [np.pad(rows[:, i * width : (i + 1) * width], ((0, 0), (0, 8 * i))) for i in range(self.sources)]
        batch.set_sources([(column.ctypes.data, column.strides[0], width) for column in columns])
        batch.set_arrays(
            positions=positions.ctypes.data, tokens=tokens.ctypes.data, num_sampled=sampled.ctypes.data,
            num_rejected=rejected.ctypes.data, last_sampled=last.ctypes.data, next_prefill=following.ctypes.data,
            drafts_out=out.ctypes.data if drafts else 0,
        )  # fmt: skip
        self.kept.append((rows, positions, tokens, sampled, rejected, last, following, out, columns))
        return out

    def check(self, shipment: Shipment) -> None:
        """Assert that every row of a shipment is the one that was meant, bit for bit."""
        for position, token, row in zip(shipment.positions, shipment.tokens, shipment.rows, strict=True):
            assert token == self.token(shipment.slot, position)
            assert np.array_equal(row, self.row(shipment.slot, shipment.generation, position)), (
                shipment.slot,
                position,
            )
