# SPDX-License-Identifier: Apache-2.0
"""ZMTP's frames on a TCP connection: enough to tell a worker's messages apart and to send what no ZMQ library would."""

from __future__ import annotations

import struct

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


GREETING_BYTES: Final = 64
MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
_SHORT_BYTES: Final = 255


@dataclass(frozen=True)
class Frame:
    """``wire``: as it came, ``body``: its bytes. ``plain``: a message of one part, no command."""

    wire: bytes
    body: bytes
    plain: bool


def frame(body: bytes, *, more: bool = False) -> bytes:
    """Return one part of a message as it travels."""
    return head(len(body), more=more) + body


def head(body_bytes: int, *, more: bool = False) -> bytes:
    """Return what goes ahead of a part of this size."""
    flags = MORE if more else 0
    if body_bytes > _SHORT_BYTES:
        return struct.pack(">BQ", flags | LONG, body_bytes)
    return struct.pack(">BB", flags, body_bytes)


class Frames:
    """Cuts what comes into frames. The greeting is handed out as it comes: each side waits for a piece of the other's."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._greeting = GREETING_BYTES  # what is yet to come of it
        self._within = False  # a message of several parts

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete by now."""
        if self._greeting and data:
            ahead, data = data[: self._greeting], data[self._greeting :]
            self._greeting -= len(ahead)
            yield Frame(ahead, b"", plain=False)
        self._held += data
        while (bounds := self._next()) is not None:
            at, end = bounds
            wire = bytes(self._held[:end])
            del self._held[:end]
            flags = wire[0]
            plain = not self._within and not flags & (MORE | COMMAND)
            if not flags & COMMAND:
                self._within = bool(flags & MORE)
            yield Frame(wire, wire[at:], plain)

    def _next(self) -> tuple[int, int] | None:
        """Return where the next frame's body begins and ends."""
        at = 9 if self._held and self._held[0] & LONG else 2
        if len(self._held) < at:
            return None
        size = struct.unpack_from(">Q", self._held, 1)[0] if at == 9 else self._held[1]
        return (at, at + size) if len(self._held) >= at + size else None
