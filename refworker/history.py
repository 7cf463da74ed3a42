# SPDX-License-Identifier: Apache-2.0
"""The tokens of one request by position, as far as they came."""

from __future__ import annotations

import bisect

from collections.abc import Iterable

from refworker.ngrams import NGrams


class History:
    """Runs of tokens at adjacent positions; between two runs lies a gap."""

    def __init__(self) -> None:
        self._grams = NGrams()
        self._starts: list[int] = []  # of each run: its first position
        self._indices: list[int] = []  # and that one's index in _grams
        self._next = 0  # the position after the newest

    def __len__(self) -> int:
        return len(self._grams) - max(len(self._starts) - 1, 0)

    def extend(self, positions: Iterable[int], tokens: Iterable[int]) -> None:
        """Append tokens at positions that ascend and lie past the newest."""
        for position, token in zip(positions, tokens, strict=True):
            if position != self._next or not self._starts:
                if self._starts:
                    self._grams.push_gap()
                self._starts.append(position)
                self._indices.append(len(self._grams))
            self._grams.push(token)
            self._next = position + 1

    def forget(self, position: int) -> None:
        """Forget every token from ``position`` on."""
        run = bisect.bisect_left(self._starts, position)
        if run < len(self._starts):
            # Runs that start there or later go whole, with the gap before them.
            self._shrink(self._indices[run] - (1 if run else 0))
            del self._starts[run:], self._indices[run:]
        if run:
            inside = self._indices[-1] + position - self._starts[-1]
            self._shrink(inside)
            self._next = self._starts[-1] + len(self._grams) - self._indices[-1]

    def continuation(self, anchor: int, count: int) -> list[int]:
        """
        Propose what follows ``anchor``, the token after the newest.

        That is what followed the newest occurrence of the longest n-gram that ends at the anchor: ``count`` tokens at most,
        none where the anchor never occurred.
        """
        found = self._grams.newest(anchor)
        return [] if found is None else self._grams.copy(found + 1, count, anchor)

    def _shrink(self, size: int) -> None:
        while len(self._grams) > size:
            self._grams.pop()
