# SPDX-License-Identifier: Apache-2.0
"""Regions by file descriptor: made, checked before anybody maps them, looked at read-only."""

from __future__ import annotations

import enum
import os

from dataclasses import dataclass
from types import TracebackType
from typing import Any

from hostflag._hostflag import ffi, lib
from hostflag.geometry import from_c, to_c
from hostflag.messages import Geometry, RoundRecord
from hostflag.recorder import record_of


class RegionFault(Exception):
    """A region that cannot be made or must not be mapped; the message says why."""


class Word(enum.IntEnum):
    """The region's words, by ``enum hf_word_id``."""

    SUBMITTED = lib.HF_WORD_SUBMITTED
    GATHERED = lib.HF_WORD_GATHERED
    CONSUMED = lib.HF_WORD_CONSUMED
    LOST = lib.HF_WORD_LOST
    PARKED = lib.HF_WORD_PARKED
    RELEASED = lib.HF_WORD_RELEASED
    RETIRED = lib.HF_WORD_RETIRED
    BEAT = lib.HF_WORD_BEAT
    PHASE = lib.HF_WORD_PHASE
    WAITING = lib.HF_WORD_WAITING


@dataclass(frozen=True)
class RegionHeader:
    """What a region's header says, checked. ``bytes`` is the size of the whole region."""

    geometry: Geometry
    bytes: int
    region_id: str


def create(geometry: Geometry) -> int:
    """
    Return the fd of a new region: allocated, header written, sealed, close-on-exec. The caller closes it.

    Raises RegionFault where the geometry is out of bounds or memory is short.
    """
    c_geometry = to_c(geometry)
    fd = int(lib.hf_region_create(c_geometry))
    if fd < 0:
        reason = lib.hf_geometry_fault(c_geometry)
        text = os.strerror(-fd) if reason == ffi.NULL else _text(reason)
        raise RegionFault(f"cannot create the region: {text}")
    return fd


def check(fd: int) -> RegionHeader:
    """
    Check seals, size and header of a region that came from somebody else.

    Raises RegionFault with the first thing that is wrong.
    """
    header = ffi.new("struct hf_header *")
    reason = ffi.new("const char **")
    result = lib.hf_region_check(fd, header, reason)
    if result < 0:
        raise RegionFault(_text(reason[0]))
    return RegionHeader(
        geometry=from_c(header.geometry),
        bytes=int(header.layout.bytes),
        region_id=f"{header.region_id[0]:016x}{header.region_id[1]:016x}",
    )


def rebase(fd: int, base: int) -> None:
    """
    Set every counter of a region that nobody uses yet to ``base``: its first round is ``base`` + 1.

    Raises RegionFault where ``fd`` is not a region.
    """
    reason = ffi.new("const char **")
    if lib.hfp_region_rebase(fd, base, reason) < 0:
        raise RegionFault(_text(reason[0]))


class View:
    """A read-only look at a region's words. Use it as a context manager: it holds a map."""

    def __init__(self, fd: int) -> None:
        view = ffi.new("struct hfp_view **")
        reason = ffi.new("const char **")
        if lib.hfp_view_open(fd, view, reason) < 0:
            raise RegionFault(_text(reason[0]))
        self._view: Any = view[0]

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def word(self, word: Word) -> int:
        """Return a word's value now."""
        return int(lib.hfp_view_word(self._open(), word))

    def verdict(self, slot: int) -> tuple[int, int]:
        """Return (round, verdict) of a slot's verdict word."""
        value = int(lib.hfp_view_verdict(self._open(), slot))
        return value >> 32, value & 0xFFFF_FFFF

    def records(self, count: int) -> tuple[RoundRecord, ...]:
        """Return the newest ``count`` rounds of the engine's flight recorder, or as many as it has, the oldest first."""
        records = ffi.new("struct hf_record[]", lib.HF_RECORDS)
        copied = lib.hfp_view_records(self._open(), min(count, lib.HF_RECORDS), records)
        return tuple(record_of(records[index]) for index in range(copied))

    def close(self) -> None:
        """Unmap. Closing twice is harmless."""
        if self._view is not None:
            lib.hfp_view_close(self._view)
            self._view = None

    def _open(self) -> Any:
        if self._view is None:
            raise RegionFault("the view is closed")
        return self._view


def _text(pointer: Any) -> str:
    text = ffi.string(pointer)
    return text.decode() if isinstance(text, bytes) else str(text)
