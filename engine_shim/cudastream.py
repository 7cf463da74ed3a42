# SPDX-License-Identifier: Apache-2.0
"""A CUDA stream as a shim's stream. It may be torch's, CuPy's or anybody's: none of them is imported."""

from __future__ import annotations

import errno
import os

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from engine_shim import environment, forks
from engine_shim._engine import ffi, lib
from engine_shim.cudadriver import CudaDriver, shared
from engine_shim.errors import StreamFault, StreamRefused, StreamStuck
from engine_shim.pointers import handle_of
from engine_shim.softstream import NS


MAX_CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
ENOUGH_CONNECTIONS: Final = 4  # measured: no stream stands still behind a parked one then, with 2 half of them do
TO_HOST: Final = int(lib.HFC_TO_HOST)
TO_DEVICE: Final = int(lib.HFC_TO_DEVICE)
ON_DEVICE: Final = int(lib.HFC_ON_DEVICE)


class CudaStream:
    """
    Takes the stream behind ``handle``: a number, or an object that has one. It stays the caller's, and must outlive this.

    Made in a thread where the stream's context is current; that of whoever submits must have it current too. ``device``: its ordinal.
    ``copies``: how several copies of a round are enqueued, 0 one by one, 1 flat ones together, 2 all together (CUDA 13); None takes the
    environment's, else 1 where the driver can.
    ``async_refusal``: why no round can be parked here, None where nothing speaks against it; the self-test may find more.
    Raises StreamRefused, with what to do, for the legacy null stream, the per-thread default stream, a stream of another context and one
    that is being captured; DriverFault where there is no driver. A number that is no stream's is for the driver to find out: it may crash.
    """

    def __init__(self, handle: Any, *, driver: CudaDriver | None = None, copies: int | None = None) -> None:
        self.driver = driver or shared()
        self.handle = handle_of(handle)
        self.untried = True
        self.copies = _copies(self.driver) if copies is None else copies
        self._stream: Any = self._open()
        self._holds: set[object] = set()  # one for each
        self._ours = False  # the handle is ours to give back
        try:
            self.device = self.driver.current_device
            self.device_name = self.driver.device_name(self.device)
            self.async_refusal = self._refusal()
            self._gather(self.copies)
        except BaseException:
            self.close()
            raise
        forks.forget_in_children(self)

    @classmethod
    def create(cls, *, driver: CudaDriver | None = None, copies: int | None = None) -> CudaStream:
        """Return a new stream of this thread's context; ``close`` gives it back."""
        driver = driver or shared()
        handle = driver.create_stream()
        try:
            stream = cls(handle, driver=driver, copies=copies)
        except BaseException:
            driver.destroy_stream(handle)
            raise
        stream._ours = True
        return stream

    def _open(self) -> Any:
        stream = ffi.new("struct hfc_stream **")
        reason = ffi.new("const char **")
        result = lib.hfc_open(self.driver.c, self.handle, stream, reason)
        if result < 0:
            why = ffi.string(reason[0]).decode()
            if -result not in {errno.EINVAL, errno.EBUSY, errno.ENOTCONN}:
                why = f"{why} ({self.driver.fault})"
            raise StreamRefused(f"stream {self.handle:#x} cannot be used: {why}")
        return stream[0]

    def _gather(self, copies: int) -> None:
        if lib.hfc_gather_copies(self._stream, copies) < 0:
            raise StreamRefused(f"this driver cannot put copies together as copies={copies} asks: it takes 0")

    def _refusal(self) -> str | None:
        if too_few := _too_few_connections():
            return too_few
        name = self.device_name
        if not self.driver.attribute(self.device, lib.HFC_HOST_REGISTER):
            lib.hfc_unregistered(self._stream)
            return f"{name} cannot register host memory (HOST_REGISTER_SUPPORTED is 0): it would not see the region"
        if not self.driver.attribute(self.device, lib.HFC_STREAM_MEM_OPS):
            return f"{name} has no memory operations on streams (CAN_USE_64_BIT_STREAM_MEM_OPS is 0)"
        return None

    def __enter__(self) -> CudaStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def c(self) -> Any:
        """The ``struct hfc_stream *``. Raises StreamStuck after close."""
        if self._stream is None:
            raise StreamStuck("the stream is closed")
        return self._stream

    @property
    def fault(self) -> str | None:
        """The driver's last failure: which call, and its name for it; None where there was none."""
        return self.driver.fault or None

    @property
    def kept(self) -> int:
        """How many regions were made known to the device, ever."""
        return int(lib.hfc_kept(self.c))

    def use(self) -> None:
        """Make its context this thread's current one, for a thread that is to submit."""
        self._accepted(lib.hfc_use(self.c), "the stream's context cannot be used here")

    def unregistered(self) -> None:
        """Register no region from here on: for synchronous rounds on a device that cannot."""
        lib.hfc_unregistered(self.c)

    # ---- where it is ----

    def marker(self) -> int:
        """Return a marker of everything enqueued so far. Markers only grow. One thread at a time."""
        marker = ffi.new("uint64_t *")
        self._accepted(lib.hfc_marker(self.c, marker), "the stream cannot be marked")
        return int(marker[0])

    def reached(self, marker: int) -> bool:
        """Whether the stream is past a marker; what came before it is then visible."""
        result = lib.hfc_reached(self.c, marker)
        self._accepted(result, "the stream cannot be asked")
        return bool(result)

    def wait(self, marker: int, timeout_s: float) -> bool:
        """Wait until the stream is past a marker. False where it did not get there in time."""
        result = lib.hfc_wait(self.c, marker, int(timeout_s * NS))
        if result == -errno.ETIMEDOUT:
            return False
        self._accepted(result, "the stream cannot be asked")
        return True

    # ---- memory and copies, for self-test, tests and benchmarks ----

    def copy(self, to: int, frm: int, nbytes: int, kind: int) -> None:
        """Copy ``nbytes``; ``kind``: TO_HOST, TO_DEVICE or ON_DEVICE. Host memory is to be pinned."""
        result = lib.hfc_copy(self.c, ffi.cast("void *", to), ffi.cast("void *", frm), nbytes, kind)
        self._accepted(result, "a copy was not accepted")

    def write_word(self, word: int, value: int) -> None:
        """Write a 32-bit word of pinned or device memory, in stream order."""
        self._accepted(lib.hfc_write_word(self.c, ffi.cast("void *", word), value), "a write was not accepted")

    def wait_word(self, word: int, value: int) -> None:
        """Let the stream wait until a word has reached a value, cyclically."""
        self._accepted(lib.hfc_wait_word(self.c, ffi.cast("void *", word), value), "a wait was not accepted")

    def alloc(self, nbytes: int) -> int:
        """Return the address of new device memory, all 0. Not the engine thread."""
        memory = ffi.new("void **")
        self._accepted(lib.hfc_alloc(self.c, nbytes, memory), "no device memory")
        return int(ffi.cast("uintptr_t", memory[0]))

    def free(self, memory: int) -> None:
        """Give device memory back when the stream is closed: never while it may be used."""
        lib.hfc_free(self.c, ffi.cast("void *", memory))

    def host_alloc(self, nbytes: int) -> int:
        """Return the address of new pinned host memory, all 0."""
        memory = ffi.new("void **")
        self._accepted(lib.hfc_host_alloc(self.c, nbytes, memory), "no pinned memory")
        return int(ffi.cast("uintptr_t", memory[0]))

    def host_free(self, memory: int) -> None:
        """Free pinned host memory. The driver waits for the device: only where that may be."""
        self._accepted(lib.hfc_host_free(self.c, ffi.cast("void *", memory)), "pinned memory was not taken back")

    def load_module(self) -> None:
        """Load a module that this process has never loaded, and unload it."""
        self._accepted(lib.hfc_load_module(self.c), "a module cannot be loaded")

    # ---- its end ----

    def hold(self) -> tuple[Any, Callable[[], None]]:
        """Return the ``struct hfe_stream *``, which stays until the function beside it is called (twice is harmless)."""
        # Noted first, and asked for by close last: one of the two sees the other.
        self._holds.add(hold := object())
        try:
            return lib.hfc_ops(self.c), lambda: self._holds.discard(hold)
        except StreamStuck:
            self._holds.discard(hold)
            raise

    def forked(self) -> None:
        """In a forked child it is closed: CUDA does not work there."""
        self._stream = None

    def close(self, timeout_s: float = 5.0) -> None:
        """
        Wait for what is enqueued and give its memory back. Closing twice is harmless.

        Raises StreamStuck where that takes longer than ``timeout_s``, where something on it (a session, a shim) is not closed, and where
        the driver says no: then everything stays as it is.
        """
        # Taken before it is freed: whatever interrupts this, it is not freed twice.
        stream, self._stream = self._stream, None
        if stream is not None and self._holds:
            self._stream = stream
            raise StreamStuck("the stream is in use: what is on it (a session, a shim) has not been closed")
        if stream is None:
            return
        result = lib.hfc_close(stream, int(timeout_s * NS))
        if result < 0:
            self._stream = stream
            why = f"within {timeout_s:g} s" if result == -errno.EBUSY else f"({self.driver.fault})"
            raise StreamStuck(f"the stream did not get past what it was given {why}: its memory is kept")
        if self._ours:
            self.driver.destroy_stream(self.handle)

    def _accepted(self, result: int, what: str) -> None:
        if result < 0:
            raise StreamFault(-result, f"{what} ({self.driver.fault})")


def _too_few_connections() -> str | None:
    """Return why the environment's number of connections is too small; None where it is not, or none. The self-test looks anyway."""
    text = os.environ.get(MAX_CONNECTIONS, "").strip()
    if text not in map(str, range(1, ENOUGH_CONNECTIONS)):
        return None
    who = (
        "every other stream of the process stands still" if text == "1" else "other streams of the process stand still"
    )
    return f"{MAX_CONNECTIONS}={text}: while one stream is parked, {who}; unset it, or set it to {ENOUGH_CONNECTIONS} or more"


def _copies(driver: CudaDriver) -> int:
    """Return how copies are enqueued where nobody says it. Raises StreamRefused where the environment says nonsense."""
    if text := os.environ.get(environment.COPIES):
        if text not in {"0", "1", "2"}:
            raise StreamRefused(f"{environment.COPIES}={text!r}: allowed is 0, 1 or 2")
        return int(text)
    return int(driver.has("cuMemcpyBatchAsync"))
