# SPDX-License-Identifier: Apache-2.0
"""What somebody writes who has a drafter: one small class. docs/DRAFTERS.md shows a whole one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hostflag.control import Open


Ids = npt.NDArray[np.int64]


class CannotDraft(Exception):
    """A drafter cannot draft for this session (another model, other sizes); the text says what to do."""


class Key(NamedTuple):
    """Names one request within a session. A slot that changes hands changes its generation."""

    request_slot: int
    generation: int


class Rows(NamedTuple):
    """
    New rows of one request, positions ascending, all past what the request's context holds.

    ``positions``: int64[n], ``tokens``: int32[n], ``data``: uint8[n, row_bytes]. Read-only views of the message they came
    in: copy what outlives the call.
    """

    key: Key
    positions: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int32]
    data: npt.NDArray[np.uint8]


class Wanted(NamedTuple):
    """A request that wants drafts: the token ids that follow ``anchor``, which itself follows the request's newest row."""

    key: Key
    anchor: int


class Drafter(ABC):
    """
    Drafts for one session; the worker makes an object a session and drops it at the session's end.

    The worker applies the contract's rule for contexts, so a drafter sees only its outcome. For each round it calls, in
    this order: ``forget`` where a request went back or its slot changed hands, ``extend`` once with all new rows, and
    ``draft`` once with all requests that want drafts. What a drafter keeps of the rows is its own business: the newest
    row, the newest ``window`` of them, a KV cache.

    What a drafter raises, and ids that are not legal, make the round fall back; the worker goes on. After a failed
    ``extend`` the requests concerned start with empty contexts (``forget(key, 0)``).

    Everything runs on one thread, one round at a time, all sessions in turn, as they would on one GPU.
    """

    @classmethod  # noqa: B027 - most have nothing to load
    def load(cls) -> None:
        """Load what all sessions share, such as weights. Called once, before the worker can be reached."""

    @abstractmethod
    def start(self, opening: Open) -> None:
        """
        Begin a session: ``opening.geometry`` has the sizes, ``opening.model`` the name of the engine's model.

        Raises CannotDraft where this drafter does not fit.
        """

    @abstractmethod
    def forget(self, key: Key, position: int) -> None:
        """Forget every row of a request from ``position`` on; 0: all of it. The request may be unknown."""

    @abstractmethod
    def extend(self, batch: Sequence[Rows]) -> None:
        """Take new rows, at most one ``Rows`` a request. Positions may leave a gap: what is lacking there is lacking."""

    @abstractmethod
    def draft(self, wanted: Sequence[Wanted]) -> Ids:
        """
        Return int64[len(wanted), drafts], each id in [0, vocab).

        A request may have no rows. Who has nothing to propose repeats the anchor: legal and harmless.
        """

    def extra_bytes(self, wanted: Sequence[Wanted]) -> bytes | None:
        """Return len(wanted) * extra_bytes opaque bytes for the drafts just made, None for zeros. Asked only where > 0."""
        del wanted
        return None
