# SPDX-License-Identifier: Apache-2.0
"""A fuzzer's input, taken from the front. Past its end there are zeros, so that every input is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar


Item = TypeVar("Item")


class Cursor:
    """What is taken is never taken again."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self._data) - self._at

    def take(self, most: int) -> bytes:
        """Return up to ``most`` bytes."""
        piece = self._data[self._at : self._at + most]
        self._at += len(piece)
        return piece

    def rest(self) -> bytes:
        return self.take(self.left)

    def number(self, size: int) -> int:
        """Return an unsigned number of ``size`` bytes."""
        return int.from_bytes(self.take(size).ljust(size, b"\0"), "little")

    def byte(self) -> int:
        return self.number(1)

    def block(self) -> bytes:
        """Return bytes whose length stands before them: up to 254, or all the rest."""
        size = self.byte()
        return self.take(size) if size < 255 else self.rest()

    def text(self) -> str:
        """Return text as the system hands it over: bytes that are no UTF-8 come as surrogates. It has no NUL."""
        return self.block().replace(b"\0", b"").decode("utf-8", "surrogateescape")

    def one_of(self, items: Sequence[Item]) -> Item:
        return items[self.byte() % len(items)]

    def spoiled(self, data: bytes, most: int = 4) -> bytes:
        """Return ``data`` with up to ``most`` of its bytes changed, or cut: as it is where the next byte is 0."""
        changed = bytearray(data)
        how = self.byte()
        for _ in range(how % (most + 1)):
            if changed:
                changed[self.number(2) % len(changed)] = self.byte()
        return bytes(changed[: self.number(2) % (len(changed) + 1)] if how >= 224 else changed)
