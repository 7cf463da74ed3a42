# SPDX-License-Identifier: Apache-2.0
"""An engine that writes a region's words, headers and rows by hand, one by one."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hostflag import geometry as geometries
from hostflag import region
from hostflag._hostflag import ffi, lib
from hostflag.messages import Geometry
from hostflag.region import View, Word
from hostflag.verdicts import Verdict


PATIENCE_S: Final = 20.0  # for what has no bound of its own: a loaded machine is slow
SESSION: Final = 0x1122334455667788
GEOMETRY: Final = Geometry(
    slots=4, max_requests=4, state_slots=8, row_bytes=64, drafts=3, vocab=1000, window=16, ring_bytes=1 << 16
)
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_FUTEX_WAKE: Final = 1


def until(what: Callable[[], Any], why: str, patience_s: float = PATIENCE_S) -> Any:
    """Return what ``what`` returns once it is true."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if result := what():
            return result
        time.sleep(0.001)
    raise AssertionError(f"not within {patience_s:g} s: {why}")


@dataclass(frozen=True)
class Ask:
    """A request of a round. Its rows' bytes, tokens and positions are made from its slot and the round."""

    slot: int = 0
    generation: int = 1
    rows: int = 1
    rejected: int = 0
    draft: bool = True
    prefill: bool = False  # every row is valid, the anchor is the next prompt token
    anchor: int = 7


class FakeEngine:
    """An engine's writes into a region, one by one. ``base`` is the counter before the first round."""

    def __init__(self, geometry: Geometry = GEOMETRY, base: int = 0) -> None:
        self.geometry = geometry
        self.fd = region.create(geometry)
        if base:
            region.rebase(self.fd, base)
        self._map = mmap.mmap(self.fd, 0)
        self._bytes = ffi.from_buffer(self._map, require_writable=True)
        self.start: Any = ffi.cast("unsigned char *", self._bytes)
        self.layout = ffi.new("struct hf_layout *")
        self._shape = geometries.to_c(geometry)
        assert lib.hf_layout_of(self._shape, self.layout) == 0
        self.view = View(self.fd)
        self._libc = ctypes.CDLL(None, use_errno=True)

    def close(self) -> None:
        self.view.close()
        ffi.release(self._bytes)
        self._map.close()
        os.close(self.fd)

    # ---- words ----

    def set_word(self, number: int, value: int) -> None:
        """Store an engine word: 0 submitted, 1 gathered, 2 consumed, 3 lost."""
        ffi.cast("uint32_t *", self.start + self.layout.engine_words + number * lib.HF_LINE)[0] = value & 0xFFFF_FFFF

    def set_verdict(self, t: int, verdict: Verdict, owner: int | None = None) -> None:
        at = self.layout.shared_words + lib.HF_LINE * (1 + t % self.geometry.slots)
        round_number = t if owner is None else owner
        ffi.cast("uint64_t *", self.start + at)[0] = round_number << 32 | verdict

    def set_released(self, t: int) -> None:
        ffi.cast("uint32_t *", self.start + self.layout.shared_words)[0] = t

    def word(self, word: Word) -> int:
        return self.view.word(word)

    def verdict(self, t: int) -> Verdict:
        owner, verdict = self.view.verdict(t % self.geometry.slots)
        assert owner == t, f"the slot holds round {owner}, not {t}"
        return Verdict(verdict)

    def lose(self) -> None:
        self.set_word(3, 1)

    # ---- a round ----

    def slot_at(self, t: int) -> Any:
        return self.start + self.layout.slots + t % self.geometry.slots * self.layout.slot_stride

    def array(self, t: int, name: str, ctype: str) -> Any:
        return ffi.cast(f"{ctype} *", self.slot_at(t) + getattr(self.layout, name))

    def header(self, t: int) -> Any:
        return ffi.cast("struct hf_round *", self.slot_at(t))

    def requests(self, t: int) -> Any:
        return ffi.cast("struct hf_request *", self.slot_at(t) + ffi.sizeof("struct hf_round"))

    def fill(self, t: int, asks: Sequence[Ask], *, context_only: bool = False, ring_offset: int = 0) -> None:
        """Write slot and rows of round t, all but the words."""
        header, requests = self.header(t), self.requests(t)
        span = ffi.new("struct hf_ring_span *")
        n_rows = sum(ask.rows for ask in asks)
        lib.hf_ring_span_of(self._shape, n_rows, span)
        header.round, header.session, header.flags = t, SESSION, lib.HF_ROUND_CONTEXT_ONLY if context_only else 0
        header.n_requests, header.n_rows = len(asks), n_rows
        header.ring_offset, header.ring_bytes, header.submitted_ns = ring_offset, span.bytes, time.monotonic_ns()
        rows = self.start + self.layout.rows + ring_offset
        first = 0
        for index, ask in enumerate(asks):
            request = requests[index]
            request.request_slot, request.generation, request.batch_index = ask.slot, ask.generation, index
            request.first_row, request.rows = first, ask.rows
            request.flags = (lib.HF_REQUEST_DRAFT if ask.draft else 0) | (
                lib.HF_REQUEST_ALL_VALID if ask.prefill else 0
            )
            self.array(t, "num_sampled", "int32_t")[index] = 0 if ask.prefill else 1
            self.array(t, "num_rejected", "int32_t")[index] = ask.rejected
            self.array(t, "last_sampled", "int64_t")[ask.slot] = -1 if ask.prefill else ask.anchor
            self.array(t, "next_prefill", "int32_t")[ask.slot] = ask.anchor if ask.prefill else -1
            for row in range(ask.rows):
                at = first + row
                ffi.cast("int64_t *", rows + span.positions)[at] = position(t, ask, row)
                ffi.cast("int32_t *", rows + span.tokens)[at] = token(t, ask, row)
                one = row_bytes(self.geometry, t, ask, row)
                ffi.memmove(rows + span.rows + at * len(one), one, len(one))
            first += ask.rows
        self.set_verdict(t, Verdict.OPEN)

    def submit(self, t: int) -> None:
        """Publish round t and ring the doorbell."""
        self.set_word(0, t)
        word = int(ffi.cast("uintptr_t", self.start + self.layout.engine_words))
        self._libc.syscall(_FUTEX, ctypes.c_void_p(word), _FUTEX_WAKE, 1, None, None, 0)

    def gather(self, t: int) -> None:
        """Say that round t's rows are there, with the stream's time."""
        ffi.cast("uint64_t *", self.slot_at(t) + self.layout.gpu_header)[0] = time.monotonic_ns()
        self.set_word(1, t)

    def begin(self, t: int, *asks: Ask, context_only: bool = False) -> None:
        """Fill, gather and submit round t: one request with one row where none is given."""
        self.fill(t, asks or (Ask(),), context_only=context_only)
        self.gather(t)
        self.submit(t)

    def finish(self, t: int) -> Verdict:
        """Wait until round t is released and retired, consume it, return its verdict."""
        until(lambda: self.word(Word.RETIRED) == t, f"round {t} retired")
        assert self.word(Word.RELEASED) == t
        self.set_word(2, t)
        return self.verdict(t)

    def ids(self, t: int, n_requests: int = 1) -> list[int]:
        at = self.layout.replies + t % self.geometry.slots * self.layout.reply_stride + self.layout.reply_ids
        return list(ffi.cast("int64_t *", self.start + at)[0 : n_requests * self.geometry.drafts])

    def extra(self, t: int, n_requests: int = 1) -> bytes:
        at = self.layout.replies + t % self.geometry.slots * self.layout.reply_stride + self.layout.reply_extra
        return bytes(ffi.buffer(self.start + at, n_requests * self.geometry.extra_bytes))

    def timing(self, t: int) -> Any:
        at = self.layout.replies + t % self.geometry.slots * self.layout.reply_stride
        return ffi.cast("struct hf_timing *", self.start + at)


def position(t: int, ask: Ask, row: int) -> int:
    return (t % 1000) * 100 + ask.slot * 10 + row


def token(t: int, ask: Ask, row: int) -> int:
    return (t + ask.slot + row) % 1000


def row_bytes(geometry: Geometry, t: int, ask: Ask, row: int) -> bytes:
    return bytes([(t * 7 + ask.slot * 31 + row) % 256]) * geometry.row_bytes
