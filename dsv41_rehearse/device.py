# SPDX-License-Identifier: Apache-2.0
"""The stand-in's GPU: arrays that count as device memory, and the kernels a step enqueues on the soft stream."""

from __future__ import annotations

import ctypes

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from dsv41_rehearse._standin import ffi, lib
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.scheduler import Item


STEPS_KEPT: Final = 8  # steps whose arguments and results stay; more than can be in flight or unsettled
U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


class Stream(Protocol):
    """What the stand-in uses of engine_shim.SoftStream. Addresses are those of C functions and memory."""

    def work(self, ns: int) -> None: ...
    def call(self, fn_address: int, arg_address: int) -> None: ...
    def marker(self) -> int: ...
    def reached(self, marker: int) -> bool: ...
    def wait(self, marker: int, timeout_s: float) -> bool: ...


def _kernel(name: str) -> int:
    return int(ffi.cast("uintptr_t", ffi.addressof(lib, name)))


_VERIFY: Final = _kernel("st_verify")
_ROWS: Final = _kernel("st_rows")
_TAKE: Final = _kernel("st_take")
_STAMP: Final = _kernel("st_stamp")


@dataclass(frozen=True)
class Outcome:
    """What a step did for one request: first row's position, tokens emitted, drafts rejected."""

    position: int
    tokens: list[int]
    rejected: int


class Device:
    """
    Device memory of one engine, and its kernels.

    ``positions`` int64 and ``tokens`` int32 [batch rows], ``num_sampled`` and ``num_rejected`` int32 [max_requests],
    ``last_sampled`` int64 and ``next_prefill`` int32 [state_slots], ``drafts_out`` int64 [max_requests, k],
    ``sources``: uint8 [batch rows, width] each; side by side they make up a row.
    """

    def __init__(self, scenario: Scenario, stream: Stream) -> None:
        geometry = scenario.geometry()
        self.scenario = scenario
        self.stream = stream
        rows = scenario.concurrency * max(scenario.prefill_rows, scenario.drafts + 1)
        parts = lib.ST_SOURCES if geometry.row_bytes % (8 * lib.ST_SOURCES) == 0 else 1
        self.sources: list[U8] = [np.empty((rows, geometry.row_bytes // parts), np.uint8) for _ in range(parts)]
        self.positions: I64 = np.zeros(rows, np.int64)
        self.tokens: I32 = np.zeros(rows, np.int32)
        self.num_sampled: I32 = np.zeros(geometry.max_requests, np.int32)
        self.num_rejected: I32 = np.zeros(geometry.max_requests, np.int32)
        self.last_sampled: I64 = np.zeros(geometry.state_slots, np.int64)
        self.next_prefill: I32 = np.zeros(geometry.state_slots, np.int32)
        self.drafts_out: I64 = np.zeros((geometry.max_requests, geometry.drafts), np.int64)
        self._text: I32 = np.frombuffer(scenario.text.tokens, np.uint8).astype(np.int32)
        self._slots = ffi.new("struct st_slot[]", geometry.state_slots)
        self._device = ffi.new("struct st_device *", self._fields(geometry.max_requests, geometry.state_slots))
        self._items = [ffi.new("struct st_item[]", geometry.max_requests) for _ in range(STEPS_KEPT)]
        self._results = [ffi.new("struct st_result[]", geometry.max_requests) for _ in range(STEPS_KEPT)]
        self._steps = [
            ffi.new("struct st_step *", {"device": self._device, "items": items, "results": results})
            for items, results in zip(self._items, self._results, strict=True)
        ]

    def _fields(self, max_requests: int, state_slots: int) -> dict[str, Any]:
        scenario = self.scenario
        return {
            "seed": scenario.seed, "drafts": scenario.drafts, "row_bytes": scenario.row_bytes,
            "n_sources": len(self.sources), "vocab": scenario.vocab, "max_requests": max_requests,
            "simulate": int(scenario.simulate_acceptance),
            "state_slots": state_slots, "text": _pointer("int32_t *", self._text), "slots": self._slots,
            "sources": [_pointer("unsigned char *", source) for source in self.sources],
            "positions": _pointer("int64_t *", self.positions), "tokens": _pointer("int32_t *", self.tokens),
            "num_sampled": _pointer("int32_t *", self.num_sampled),
            "num_rejected": _pointer("int32_t *", self.num_rejected),
            "last_sampled": _pointer("int64_t *", self.last_sampled),
            "next_prefill": _pointer("int32_t *", self.next_prefill),
            "drafts_out": _pointer("int64_t *", self.drafts_out),
        }  # fmt: skip

    def launch(self, step: int, items: list[Item]) -> int:
        """Enqueue a step's work and kernels. Returns the marker past which its tokens are there."""
        kept = step % STEPS_KEPT
        rows = self._items[kept]
        for index, item in enumerate(items):
            flags = (lib.ST_PREFILL if item.prefill else 0) | (lib.ST_LAST_CHUNK if item.last_chunk else 0)
            target = rows[index]
            target.uid, target.text_at = item.request.uid, item.request.text_at
            target.text_tokens = len(self._text) - item.request.text_at
            target.first, target.slot, target.rows = item.first, item.slot, item.rows
            target.first_row, target.flags = item.first_row, flags | (lib.ST_DRAFT if item.draft else 0)
        argument = self._steps[kept]
        argument.n_items = len(items)
        address = int(ffi.cast("uintptr_t", argument))
        if self.scenario.gpu_ms:
            self.stream.work(int(self.scenario.gpu_ms * 1e6))
        self.stream.call(_VERIFY, address)
        # Sampled tokens leave before the round parks the stream, as vLLM's do.
        marker = self.stream.marker()
        self.stream.call(_ROWS, address)
        return marker

    def take(self, step: int, *, drafting: bool) -> int:
        """Enqueue, behind the round, the kernel that takes its drafts. Returns the marker past which they are there."""
        argument = self._steps[step % STEPS_KEPT]
        argument.drafting = int(drafting)
        self.stream.call(_TAKE, int(ffi.cast("uintptr_t", argument)))
        return self.stream.marker()

    def outcome(self, step: int, index: int) -> Outcome:
        """Return what a step did for the request at ``index`` of its batch, once the stream is past its tokens marker."""
        result = self._results[step % STEPS_KEPT][index]
        return Outcome(result.position, ffi.unpack(result.tokens, result.sampled), result.rejected)

    def taken_ns(self, step: int) -> int:
        """Return when the stream was past a step's round (CLOCK_MONOTONIC), once it is past its last marker."""
        return int(self._steps[step % STEPS_KEPT].taken_ns)

    def drafts(self, step: int, index: int) -> bytes:
        """Return the drafts (int64, k of them) that a step left for the request at ``index``, once past its last marker."""
        result = self._results[step % STEPS_KEPT][index]
        return bytes(ffi.buffer(result.drafts, 8 * self.scenario.drafts))

    @property
    def illegal_ids(self) -> int:
        """Draft ids outside [0, vocab) that reached the device."""
        return int(self._device.illegal)


class RowSource:
    """The engine's own idea of its rows: what the kernels write, computed anew from request, position and token."""

    def __init__(self, scenario: Scenario) -> None:
        self._seed, self._row_bytes = scenario.seed, scenario.row_bytes
        self._scratch: U8 = np.empty(0, np.uint8)

    def rows(self, uid: int, positions: I64, tokens: I32) -> U8:
        """Return the bytes of the rows at these positions; valid until the next call."""
        wanted = len(positions) * self._row_bytes
        if len(self._scratch) < wanted:
            self._scratch = np.empty(wanted, np.uint8)
        lib.st_fill_rows(
            self._seed, uid, self._row_bytes, len(positions), _pointer("int64_t *", positions),
            _pointer("int32_t *", tokens), _pointer("unsigned char *", self._scratch),
        )  # fmt: skip
        return self._scratch[:wanted]


def keep(memory: object) -> None:
    """
    Never free it: a stream that did not end may still write there.

    A list would be emptied with its module where the interpreter ends; the stream's thread goes on until the process does.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))


def stamp(stream: Stream, to: Any) -> None:
    """Enqueue a kernel that writes CLOCK_MONOTONIC, ns, to ``to`` (a ``uint64_t *``)."""
    stream.call(_STAMP, int(ffi.cast("uintptr_t", to)))


def _pointer(kind: str, array: npt.NDArray[Any]) -> Any:
    return ffi.cast(kind, array.ctypes.data)
