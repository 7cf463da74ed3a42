# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver (native/cudadriver.h), opened at run time. No process but an engine's opens it."""

from __future__ import annotations

import functools
import os

from typing import Any, Final

from engine_shim import environment
from engine_shim._engine import ffi, lib
from engine_shim.errors import DriverFault


LIBRARY: Final = "libcuda.so.1"
_BYTES: Final = 512


@functools.cache
def functions() -> dict[str, int]:
    """Return the number of each function of the driver that is used, by name."""
    names: dict[str, int] = {}
    while (name := lib.hfc_function_name(len(names))) != ffi.NULL:
        names[ffi.string(name).decode()] = len(names)
    return names


@functools.cache
def shared() -> CudaDriver:
    """Return the driver that streams take where they are given none. Raises DriverFault."""
    return CudaDriver()


class CudaDriver:
    """
    ``library``: a name for dlopen; None takes the environment's, else libcuda.so.1. It stays loaded for good.

    Raises DriverFault where there is none, where it is too old, and where a call fails.
    """

    def __init__(self, library: str | None = None) -> None:
        self.library = library or os.environ.get(environment.LIBCUDA) or LIBRARY
        driver = ffi.new("struct hfc_driver **")
        reason = ffi.new("char[]", _BYTES)
        result = lib.hfc_driver_open(os.fsencode(self.library), driver, reason, _BYTES)
        if result < 0:
            raise DriverFault(-result, _text(reason))
        self.c: Any = driver[0]

    @property
    def version(self) -> int:
        """Of the API that it implements: 13000 for CUDA 13.0."""
        return self._done(lib.hfc_driver_version(self.c))

    @property
    def fault(self) -> str:
        """The last call that failed and how, in the driver's own words; empty where none did."""
        text = ffi.new("char[]", _BYTES)
        lib.hfc_fault(self.c, text, _BYTES)
        return _text(text)

    def describe(self, result: int) -> str:
        """Return the driver's name for a CUresult, and what it means."""
        text = ffi.new("char[]", _BYTES)
        lib.hfc_describe(self.c, result, text, _BYTES)
        return _text(text)

    # ---- the table ----

    def calls(self) -> dict[str, int]:
        """Return how often each function was called through this driver; those never called are left out."""
        counts = {name: int(lib.hfc_calls(self.c, number)) for name, number in functions().items()}
        return {name: count for name, count in counts.items() if count}

    def has(self, function: str) -> bool:
        """Whether the library has an optional function, such as cuStreamBatchMemOp."""
        return bool(lib.hfc_function_there(self.c, functions()[function]))

    def fail_nth(self, n: int, error: int, *, function: str | None = None, onwards: bool = False) -> None:
        """
        Make the ``n``-th call from now on return ``error`` (a CUresult) and do nothing. 0: none.

        ``function`` None: of those that enqueue copies, writes and waits. ``onwards``: all after it fail too, until called again.
        """
        lib.hfc_fail_nth(self.c, -1 if function is None else functions()[function], n, error, onwards)

    def replace(self, function: str, address: int) -> int:
        """Put another C function of the same signature in a function's place, for tests; return the address of the one before."""
        return int(ffi.cast("uintptr_t", lib.hfc_replace(self.c, functions()[function], ffi.cast("void *", address))))

    # ---- devices ----

    @property
    def devices(self) -> int:
        """How many there are."""
        return self._done(lib.hfc_device_count(self.c))

    @property
    def current_device(self) -> int:
        """The ordinal of this thread's device."""
        return self._done(lib.hfc_current_device(self.c))

    def device_name(self, ordinal: int) -> str:
        """Return what the device is called."""
        text = ffi.new("char[]", _BYTES)
        self._done(lib.hfc_device_name(self.c, ordinal, text, _BYTES))
        return _text(text)

    def attribute(self, ordinal: int, attribute: int) -> int:
        """Return a device attribute by its number."""
        value = ffi.new("int *")
        self._done(lib.hfc_device_attribute(self.c, ordinal, attribute, value))
        return int(value[0])

    def use_primary(self, ordinal: int = 0) -> None:
        """Make the device's primary context, the one torch uses, current in this thread."""
        self._done(lib.hfc_use_primary(self.c, ordinal))

    def create_stream(self) -> int:
        """Return the handle of a new stream of this thread's context, which does not synchronise with the null stream."""
        handle = ffi.new("uint64_t *")
        self._done(lib.hfc_stream_create(self.c, handle))
        return int(handle[0])

    def destroy_stream(self, handle: int) -> None:
        """Give a stream back that ``create_stream`` made."""
        self._done(lib.hfc_stream_destroy(self.c, handle))

    def _done(self, result: int) -> int:
        if result < 0:
            raise DriverFault(-result, self.fault)
        return result


def _text(buffer: Any) -> str:
    raw = ffi.string(buffer)
    return raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
