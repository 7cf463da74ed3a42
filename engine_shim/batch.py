# SPDX-License-Identifier: Apache-2.0
"""A step as the engine hands it over: C arrays that are made once and filled anew for every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine_shim._engine import ffi, lib


MAX_SOURCES: Final = int(lib.HFE_MAX_SOURCES)
DRAFT: Final = int(lib.HFE_DRAFT)
PREFILL: Final = int(lib.HFE_PREFILL)


def _fields() -> dict[str, Any]:
    names = ["request_slot", "generation", "first_row", "rows", "flags", "to_come"]
    return {
        "names": names,
        "formats": ["<u4"] * len(names),
        "offsets": [int(ffi.offsetof("struct hfe_request", name)) for name in names],
        "itemsize": int(ffi.sizeof("struct hfe_request")),
    }


REQUEST_FIELDS: Final = _fields()
"""``struct hfe_request`` as ``numpy.dtype`` takes it: ``numpy.frombuffer(batch.buffer, numpy.dtype(REQUEST_FIELDS))``."""


class Batch:
    """
    One step. ``requests`` is the C array of ``struct hfe_request``, in batch order; ``n_requests`` of them count.

    ``buffer`` is the same memory, writable. A batch can be filled again as soon as ``submit`` has returned; the device memory
    it points to must keep its content until the stream is past the step.
    """

    __slots__ = ("_sources", "buffer", "c", "requests")

    def __init__(self, max_requests: int) -> None:
        self.requests: Any = ffi.new("struct hfe_request[]", max_requests)
        self.buffer = memoryview(ffi.buffer(self.requests))
        self._sources: Any = ffi.new("struct hfe_source[]", MAX_SOURCES)
        self.c: Any = ffi.new("struct hfe_batch *")
        self.c.requests = self.requests
        self.c.sources = self._sources

    @property
    def max_requests(self) -> int:
        """How many requests there is room for."""
        return len(self.requests)

    @property
    def n_requests(self) -> int:
        """How many requests the step has."""
        return int(self.c.n_requests)

    @n_requests.setter
    def n_requests(self, count: int) -> None:
        if not 0 <= count <= len(self.requests):
            raise ValueError(f"{count} requests: the batch has room for {len(self.requests)}")
        self.c.n_requests = count

    def set_request(
        self, index: int, *, slot: int, generation: int, first_row: int, rows: int,
        draft: bool, prefill: bool = False, to_come: int = 0,
    ) -> None:  # fmt: skip
        """Fill one request. ``to_come``: prompt tokens after this chunk. Faster for many: write to ``buffer``."""
        flags = (DRAFT if draft else 0) | (PREFILL if prefill else 0)
        self.requests[index] = (slot, generation, first_row, rows, flags, to_come)

    def set_sources(self, sources: Sequence[tuple[int, int, int]]) -> None:
        """
        Say where rows come from: (device address, pitch, width) of each 2D array, in bytes; side by side they make a row.

        Raises ValueError for more than ``MAX_SOURCES``.
        """
        if len(sources) > MAX_SOURCES:
            raise ValueError(f"{len(sources)} sources: at most {MAX_SOURCES}")
        for index, (address, pitch, width) in enumerate(sources):
            source = self._sources[index]
            setattr(source, "from", ffi.cast("void *", address))
            source.pitch = pitch
            source.width = width
        self.c.n_sources = len(sources)

    def set_arrays(
        self, *, positions: int, tokens: int, num_sampled: int, num_rejected: int,
        last_sampled: int, next_prefill: int, drafts_out: int,
    ) -> None:  # fmt: skip
        """Give the device addresses of ``struct hfe_batch``'s arrays. ``drafts_out`` 0: a step that takes no drafts."""
        self.c.positions = ffi.cast("int64_t *", positions)
        self.c.tokens = ffi.cast("int32_t *", tokens)
        self.c.num_sampled = ffi.cast("int32_t *", num_sampled)
        self.c.num_rejected = ffi.cast("int32_t *", num_rejected)
        self.c.last_sampled = ffi.cast("int64_t *", last_sampled)
        self.c.next_prefill = ffi.cast("int32_t *", next_prefill)
        self.c.drafts_out = ffi.cast("int64_t *", drafts_out)
