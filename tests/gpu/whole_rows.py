# SPDX-License-Identifier: Apache-2.0
"""A drafter for tests: its drafts follow from every byte of the rows that a round brought, their positions and tokens."""

from __future__ import annotations

import zlib

from collections.abc import Sequence

import numpy as np

from hostflag.control import Open
from refworker.drafter import Drafter, Ids, Key, Rows, Wanted


FACTOR = 40_503


def drafts_of(checksum: int, anchor: int, drafts: int, vocab: int) -> list[int]:
    """Return the drafts of a request whose rows have this checksum."""
    return [(checksum + anchor + index * FACTOR) % vocab for index in range(drafts)]


def checksum_of(positions: bytes, tokens: bytes, rows: bytes) -> int:
    """Return the checksum of a request's rows of one round."""
    return zlib.crc32(rows, zlib.crc32(tokens, zlib.crc32(positions)))


class WholeRows(Drafter):
    """Keeps the checksum of what the newest round brought."""

    def start(self, opening: Open) -> None:
        self._geometry = opening.geometry
        self._sums: dict[Key, int] = {}

    def forget(self, key: Key, position: int) -> None:
        """Nothing: a round that brings rows replaces what was before."""

    def extend(self, batch: Sequence[Rows]) -> None:
        for rows in batch:
            self._sums[rows.key] = checksum_of(rows.positions.tobytes(), rows.tokens.tobytes(), rows.data.tobytes())

    def draft(self, wanted: Sequence[Wanted]) -> Ids:
        g = self._geometry
        return np.array(
            [drafts_of(self._sums.get(key, 0), anchor, g.drafts, g.vocab) for key, anchor in wanted], dtype=np.int64
        )
