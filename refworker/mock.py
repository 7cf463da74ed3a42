# SPDX-License-Identifier: Apache-2.0
"""Drafts that are a fixed function of the newest row's bytes, so that both directions can be checked bit by bit."""

from __future__ import annotations

import zlib

from collections.abc import Sequence
from typing import Final

import numpy as np

from hostflag.control import Open
from refworker.drafter import Drafter, Ids, Key, Rows, Wanted


STEP: Final = 40503


class Mock(Drafter):
    """
    Draft i is (crc + i * STEP) mod vocab, crc being crc32 of the newest row that the context holds, 0 where it holds none.

    Extra bytes are that crc, little-endian, again and again.
    """

    def start(self, opening: Open) -> None:
        """Take the sizes."""
        self._geometry = opening.geometry
        self._steps = np.arange(opening.geometry.drafts, dtype=np.int64) * STEP
        self._crcs: dict[Key, int] = {}

    def forget(self, key: Key, position: int) -> None:
        """Forget the newest row: where the request goes on, newer ones follow at once."""
        del position
        self._crcs.pop(key, None)

    def extend(self, batch: Sequence[Rows]) -> None:
        """Keep the newest row's checksum."""
        for rows in batch:
            self._crcs[rows.key] = zlib.crc32(rows.data[-1])

    def draft(self, wanted: Sequence[Wanted]) -> Ids:
        """Return int64[len(wanted), drafts]."""
        crcs = np.array([self._crcs.get(request.key, 0) for request in wanted], dtype=np.int64)
        ids: Ids = (crcs[:, np.newaxis] + self._steps) % self._geometry.vocab
        return ids

    def extra_bytes(self, wanted: Sequence[Wanted]) -> bytes | None:
        """Return the checksum, repeated to fill each request's extra bytes."""
        size = self._geometry.extra_bytes
        crcs = (self._crcs.get(request.key, 0).to_bytes(4, "little") for request in wanted)
        return b"".join((crc * (size // 4 + 1))[:size] for crc in crcs)
