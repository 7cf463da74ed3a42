# SPDX-License-Identifier: Apache-2.0
"""One session of one engine rank: its contexts, and its rounds from rows to ids."""

from __future__ import annotations

import contextlib

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hostflag.control import Open
from hostflag.wire import Reply, Request, Round, Status
from refworker.context import Context
from refworker.drafter import Drafter, Ids, Key, Rows, Wanted


class DraftFault(Exception):
    """The drafter failed in a round; the cause, where there is one, says how."""


class Session:
    """What the worker knows of a session. ``seen``: when its peer was last heard of, by the clock of ``Hearing``."""

    def __init__(self, number: int, identity: bytes, opening: Open, drafter: Drafter, seen: float) -> None:
        self.number = number
        self.identity = identity
        self.opening = opening
        self.geometry = opening.geometry
        self.seen = seen
        self._drafter = drafter
        self._contexts: dict[int, Context] = {}

    def take(self, message: Round) -> None:
        """
        Take a round's rows into the contexts.

        Raises DraftFault where the drafter fails: then the round's requests go on with empty contexts.
        """
        try:
            batch = self._changes(message)
            if batch:
                self._drafter.extend(batch)
        except Exception as error:
            self._empty(message.requests)
            raise DraftFault("the drafter did not take the rows") from error

    def draft(self, message: Round) -> Reply:
        """
        Draft for the requests that want it; the ids of the others are 0.

        Raises DraftFault where the drafter fails or returns what is not legal.
        """
        wanted = [Wanted(Key(r.request_slot, r.generation), r.anchor) for r in message.requests if r.draft]
        n_requests, extra_bytes = len(message.requests), self.geometry.extra_bytes
        ids: Ids = np.zeros((n_requests, self.geometry.drafts), dtype=np.int64)
        extra = np.zeros((n_requests, extra_bytes), dtype=np.uint8)
        if wanted:
            mask = [request.draft for request in message.requests]
            try:
                drafted: Any = self._drafter.draft(wanted)
                extras = self._drafter.extra_bytes(wanted) if extra_bytes else None
            except Exception as error:
                raise DraftFault("the drafter did not draft") from error
            ids[mask] = self._legal(drafted, len(wanted))
            if extras is not None:
                extra[mask] = self._fitting(extras, len(wanted))
        return Reply(self.number, message.round, Status.OK, n_requests, _bytes_of(ids).cast("q"), _bytes_of(extra))

    def _changes(self, message: Round) -> list[Rows]:
        """Apply the contract's rule to each request: the drafter forgets what went; return what came."""
        positions = np.frombuffer(message.positions, dtype=np.int64)
        tokens = np.frombuffer(message.tokens, dtype=np.int32)
        data = np.frombuffer(message.rows, dtype=np.uint8).reshape(-1, message.row_bytes)
        batch = []
        for request in message.requests:
            key = Key(request.request_slot, request.generation)
            context = self._context(key)
            if not request.rows:
                continue
            rows: Any = slice(request.first_row, request.first_row + request.rows)
            forget, kept = context.take(message.positions[rows].tolist())
            if forget is not None:
                self._drafter.forget(key, forget)
            if kept is not None:
                rows = [request.first_row + index for index in kept]
            batch.append(Rows(key, positions[rows], tokens[rows], data[rows]))
        return batch

    def _context(self, key: Key) -> Context:
        context = self._contexts.get(key.request_slot)
        if context is None or context.generation != key.generation:
            if context is not None:
                self._drafter.forget(Key(key.request_slot, context.generation), 0)
            context = self._contexts[key.request_slot] = Context(key.generation)
        return context

    def _empty(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._contexts[request.request_slot] = Context(request.generation)
            # It failed already, and that is being reported; what it does now changes nothing.
            with contextlib.suppress(Exception):
                self._drafter.forget(Key(request.request_slot, request.generation), 0)

    def _legal(self, drafted: Any, n_wanted: int) -> Ids:
        shape = (n_wanted, self.geometry.drafts)
        if not isinstance(drafted, np.ndarray) or drafted.dtype.kind not in "iu" or drafted.shape != shape:
            what = f"{drafted.dtype}{drafted.shape}" if isinstance(drafted, np.ndarray) else type(drafted).__name__
            raise DraftFault(f"the drafter returned {what}, not whole numbers of shape {shape}")
        if drafted.min() < 0 or drafted.max() >= self.geometry.vocab:
            raise DraftFault(f"the drafter returned an id that is not in [0, {self.geometry.vocab})")
        return drafted

    def _fitting(self, extras: Any, n_wanted: int) -> npt.NDArray[np.uint8]:
        size = n_wanted * self.geometry.extra_bytes
        if not isinstance(extras, bytes | bytearray | memoryview) or memoryview(extras).nbytes != size:
            raise DraftFault(f"the drafter's extra bytes are not {size} bytes")
        return np.frombuffer(extras, dtype=np.uint8).reshape(n_wanted, -1)


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    # An empty array has strides that memoryview.cast does not take.
    return array.data.cast("B") if array.size else memoryview(b"")
