# SPDX-License-Identifier: Apache-2.0
"""A step as the engine hands it over: C arrays that are made once and filled anew for every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine_shim._engine import ffi, lib
from engine_shim.pointers import address_of, source_of


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

    @property
    def empty(self) -> bool:
        """Whether a step without requests makes a round all the same, an empty one: the daemon decides it, and no worker is asked."""
        return bool(self.c.empty)

    @empty.setter
    def empty(self, wanted: bool) -> None:
        self.c.empty = wanted

    def set_request(
        self, index: int, *, slot: int, generation: int, first_row: int, rows: int,
        draft: bool, prefill: bool = False, to_come: int = 0,
    ) -> None:  # fmt: skip
        """Fill one request. ``to_come``: prompt tokens after this chunk. Faster for many: write to ``buffer``."""
        flags = (DRAFT if draft else 0) | (PREFILL if prefill else 0)
        self.requests[index] = (slot, generation, first_row, rows, flags, to_come)

    def set_requests(self, requests: Sequence[tuple[int, int, int, int, int, int]]) -> None:
        """Fill all at once: (slot, generation, first_row, rows, flags of DRAFT and PREFILL, to_come) of each, in batch order."""
        count = len(requests)
        self.n_requests = count
        self.requests[0:count] = requests

    def set_sources(self, sources: Sequence[Any]) -> None:
        """
        Say where rows come from: 2D device arrays [rows, columns], or (address, pitch, width) of each in bytes.

        Side by side they make a row.

        Raises ValueError for more than ``MAX_SOURCES``, TypeError and ValueError for what is no such array.
        """
        if len(sources) > MAX_SOURCES:
            raise ValueError(f"{len(sources)} sources: at most {MAX_SOURCES}")
        for index, (address, pitch, width) in enumerate(map(source_of, sources)):
            source = self._sources[index]
            setattr(source, "from", ffi.cast("void *", address))
            source.pitch = pitch
            source.width = width
        self.c.n_sources = len(sources)

    def set_arrays(
        self, *, positions: Any, tokens: Any, num_sampled: Any, num_rejected: Any,
        last_sampled: Any, next_prefill: Any, drafts_out: Any,
    ) -> None:  # fmt: skip
        """
        Give ``struct hfe_batch``'s arrays: device addresses, or device arrays (contiguous). ``drafts_out`` 0: a step without drafts.

        They are read when the step runs: whoever gives arrays keeps them until then.
        """
        self.c.positions = ffi.cast("int64_t *", address_of(positions))
        self.c.tokens = ffi.cast("int32_t *", address_of(tokens))
        self.c.num_sampled = ffi.cast("int32_t *", address_of(num_sampled))
        self.c.num_rejected = ffi.cast("int32_t *", address_of(num_rejected))
        self.c.last_sampled = ffi.cast("int64_t *", address_of(last_sampled))
        self.c.next_prefill = ffi.cast("int32_t *", address_of(next_prefill))
        self.c.drafts_out = ffi.cast("int64_t *", address_of(drafts_out))
