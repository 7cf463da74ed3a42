# SPDX-License-Identifier: Apache-2.0
"""A region on the engine's side: mapped and made known to the stream once, then one session after the other is on it."""

from __future__ import annotations

import os

from typing import Any, Final

from engine_shim._engine import ffi, lib
from engine_shim.errors import DeviceRefused, HandshakeFailed
from engine_shim.status import SessionStatus, status_of
from engine_shim.stream import Stream
from hostflag.messages import Geometry


DEVICE_REASONS: Final = ("the stream cannot", "out of device memory")  # engineregion.c


class Region:
    """
    Owns its map until ``close``, and holds ``stream`` as long. ``fd``, its memfd, stays the caller's.

    ``geometry``: what it was checked against by whoever brought the fd. Blocks (registration): never on the engine thread. Raises
    HandshakeFailed with the reason where it cannot be used.
    """

    def __init__(self, fd: int, stream: Stream, geometry: Geometry, backlog_rows: int) -> None:
        self.geometry = geometry
        region = ffi.new("struct hfe_region **")
        reason = ffi.new("const char **")
        c_stream, self._let_go = stream.hold()
        result = lib.hfe_region_open(fd, c_stream, backlog_rows, region, reason)
        if result < 0:
            self._let_go()
            raise _refusal(text_of(reason[0]), result, stream.fault)
        self._region: Any = region[0]

    @property
    def c(self) -> Any:
        """The ``struct hfe_region *``."""
        return self._region

    def fileno(self) -> int:
        """Return the memfd; it stays the region's."""
        return int(lib.hfe_region_fd(self._region))

    def base(self) -> int | None:
        """Return the round it is at rest at, or None: a session is on it, the stream is not past its rounds, or it is poisoned."""
        base = self._rest()
        return None if base is None or self._garbage(base) else base

    @property
    def poisoned(self) -> bool:
        """Whether no session is ever on it again: a submit failed half-way in it, or a daemon left words that every other one refuses."""
        if lib.hfe_region_poisoned(self._region):
            return True
        base = self._rest()
        return base is not None and self._garbage(base)

    def _rest(self) -> int | None:
        base = ffi.new("uint32_t *")
        return int(base[0]) if lib.hfe_region_rest(self._region, base) == 0 else None

    def _garbage(self, base: int) -> bool:
        """Whether a word is ahead of the round it rests at. None of them is ever set back, so they stay so (loopstart.c, take_base)."""
        status = self.status()
        return any(0 < (word - base) & 0xFFFF_FFFF < 1 << 31 for word in (status.released, status.retired))

    def offer(self) -> None:
        """Clear the lost word. Only once the last owner is gone, before the region is handed to the next one."""
        lib.hfe_region_mark(self._region, 0)

    def withdraw(self) -> None:
        """Set the lost word: a daemon that was offered the region lets go of it."""
        lib.hfe_region_mark(self._region, 1)

    def status(self) -> SessionStatus:
        """Return its words, and its counters over all sessions that were on it."""
        status = ffi.new("struct hfe_status *")
        lib.hfe_region_status_of(self._region, status)
        return status_of(status)

    def close(self) -> bool:
        """Unmap. False, and nothing is done, while a session on it is not ended."""
        # Taken before it is freed: whatever interrupts this, it is not freed twice.
        region, self._region = self._region, None
        if region is not None and lib.hfe_region_close(region) < 0:
            self._region = region
            return False
        self._let_go()
        return True

    def forked(self) -> None:
        """Drop what a forked child has of it."""
        if self._region is not None:
            lib.hfe_region_forked(self._region)


def _refusal(reason: str, result: int, fault: str | None) -> HandshakeFailed:
    text = f"the region cannot be used: {reason} ({os.strerror(-result)}"
    # What a device's driver said last is the reason only where it was asked.
    if fault is None or not reason.startswith(DEVICE_REASONS):
        return HandshakeFailed(f"{text})")
    return DeviceRefused(f"{text}; {fault})")


def text_of(pointer: Any) -> str:
    """Return a C text."""
    if pointer == ffi.NULL:
        return "?"
    text = ffi.string(pointer)
    return text.decode() if isinstance(text, bytes) else str(text)
