# SPDX-License-Identifier: Apache-2.0
"""Device memory and pinned memory for the bench, by the product's own driver table: no torch is needed for these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine_shim._engine import ffi
from engine_shim.cudastream import TO_DEVICE, CudaStream


COPY_S: Final = 10.0


class Pinned:
    """Pinned host memory of a stream. ``view`` is its bytes, writable."""

    def __init__(self, stream: CudaStream, nbytes: int) -> None:
        self._stream = stream
        self.address = stream.host_alloc(nbytes)
        self.view = memoryview(ffi.buffer(ffi.cast("char *", self.address), nbytes)).cast("B")
        self._words = self.view[: nbytes // 4 * 4].cast("I")

    def word(self, offset: int) -> int:
        """Return the 32-bit word at a byte offset, read whole."""
        return self._words[offset // 4]

    def set_word(self, offset: int, value: int) -> None:
        """Write a 32-bit word at a byte offset, whole."""
        self._words[offset // 4] = value

    def free(self) -> None:
        """Give it back: the driver waits for the device."""
        self._words.release()
        self.view.release()
        self._stream.host_free(self.address)


def upload(stream: CudaStream, pieces: Sequence[tuple[int, bytes]]) -> None:
    """Copy bytes to device addresses; they are there on return."""
    if not pieces:
        return
    pinned = Pinned(stream, sum(len(data) for _, data in pieces))
    at = 0
    for address, data in pieces:
        pinned.view[at : at + len(data)] = data
        stream.copy(address, pinned.address + at, len(data), TO_DEVICE)
        at += len(data)
    if not stream.wait(stream.marker(), COPY_S):
        raise TimeoutError(f"the device did not take {at} bytes within {COPY_S:g} s")
    pinned.free()
