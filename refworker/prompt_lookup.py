# SPDX-License-Identifier: Apache-2.0
"""Drafts without a model: what followed the same few tokens earlier in the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from hostflag.control import Open
from refworker.drafter import Drafter, Ids, Key, Rows, Wanted
from refworker.history import History


MAX_TOKENS: Final = 1 << 20  # of one request: more, and its history starts over, so that memory has a bound


class PromptLookup(Drafter):
    """
    Proposes what followed the newest occurrence of the longest n-gram (8 tokens at most) that ends at the anchor.

    Keeps a request's whole history of tokens, no row bytes.
    """

    def start(self, opening: Open) -> None:
        """Take the sizes."""
        self._drafts = opening.geometry.drafts
        self._histories: dict[Key, History] = {}

    def forget(self, key: Key, position: int) -> None:
        """Forget tokens from ``position`` on."""
        if position == 0:
            self._histories.pop(key, None)
        elif key in self._histories:
            self._histories[key].forget(position)

    def extend(self, batch: Sequence[Rows]) -> None:
        """Add tokens to the histories."""
        for rows in batch:
            history = self._histories.get(rows.key)
            if history is None or len(history) > MAX_TOKENS:
                history = self._histories[rows.key] = History()
            history.extend(rows.positions.tolist(), rows.tokens.tolist())

    def draft(self, wanted: Sequence[Wanted]) -> Ids:
        """Return int64[len(wanted), drafts]; the anchor where nothing is known."""
        ids: Ids = np.empty((len(wanted), self._drafts), dtype=np.int64)
        for row, (key, anchor) in zip(ids, wanted, strict=True):
            row.fill(anchor)
            history = self._histories.get(key)
            if history is not None:
                proposed = history.continuation(anchor, self._drafts)
                row[: len(proposed)] = proposed
        return ids
