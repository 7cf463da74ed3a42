# SPDX-License-Identifier: Apache-2.0
"""The soft stream: a FIFO of copies, kernels and waits, run by a C thread of its own. A stream without a GPU."""

from __future__ import annotations

import os

from collections.abc import Callable
from types import TracebackType
from typing import Any

from engine_shim import forks
from engine_shim._engine import ffi, lib
from engine_shim.errors import StreamFault, StreamStuck


NS: int = 1_000_000_000


class SoftStream:
    """
    Every operation is enqueued and runs in order; an enqueue waits only where ``HFS_DEPTH`` are outstanding.

    Memory that an operation names must live until the stream is past it. Raises StreamFault where an operation was not
    accepted. ``async_refusal``: why no stream of this device can wait on a word, as its owner found out; None: it can. A shim
    then lets the engine thread wait instead.
    """

    def __init__(self, *, async_refusal: str | None = None) -> None:
        self.async_refusal = async_refusal
        self.untried = False  # it is what it says it is
        stream = ffi.new("struct hfs_stream **")
        _accepted(lib.hfs_open(stream), "the soft stream's thread cannot be started")
        self._stream: Any = stream[0]
        self._holds: set[object] = set()  # one for each
        forks.forget_in_children(self)

    def __enter__(self) -> SoftStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def c(self) -> Any:
        """The ``struct hfs_stream *``. Raises StreamStuck after close."""
        if self._stream is None:
            raise StreamStuck("the soft stream is closed")
        return self._stream

    @property
    def fault(self) -> str | None:
        """What the device's driver last failed with: it has none."""
        return None

    def work(self, ns: int) -> None:
        """Keep the stream busy for ``ns``, as a kernel that uses no CPU."""
        _accepted(lib.hfs_work(self.c, ns), "simulated work was not accepted")

    def call(self, fn_address: int, arg_address: int) -> None:
        """Call the C function ``void fn(void *)`` in the stream's thread: a kernel."""
        fn = ffi.cast("void (*)(void *)", fn_address)
        _accepted(lib.hfs_call(self.c, fn, ffi.cast("void *", arg_address)), "a call was not accepted")

    def copy(self, to: int, frm: int, nbytes: int) -> None:
        """Copy ``nbytes`` from one address to another."""
        result = lib.hfs_copy(self.c, ffi.cast("void *", to), ffi.cast("void *", frm), nbytes)
        _accepted(result, "a copy was not accepted")

    def marker(self) -> int:
        """Return a marker of everything enqueued so far. Markers only grow."""
        return int(lib.hfs_marker(self.c))

    def reached(self, marker: int) -> bool:
        """Whether the stream is past a marker; what came before it is then visible."""
        return bool(lib.hfs_reached(self.c, marker))

    def wait(self, marker: int, timeout_s: float) -> bool:
        """Wait until the stream is past a marker. False where it did not get there in time."""
        return bool(lib.hfs_wait(self.c, marker, int(timeout_s * NS)) == 0)

    def fail_nth(self, n: int, error: int, *, onwards: bool = False) -> None:
        """
        Make the ``n``-th operation from now on fail with this errno; it is not enqueued. 0: none.

        ``onwards``: all after it fail too, until this is called again.
        """
        lib.hfs_fail_nth(self.c, n, error, onwards)

    @property
    def kept(self) -> int:
        """How many regions were made known to it, ever."""
        return int(lib.hfs_kept(self.c))

    def hold(self) -> tuple[Any, Callable[[], None]]:
        """
        Return the ``struct hfe_stream *`` of it, which stays until the function beside it is called (twice is harmless).

        Raises StreamStuck after close.
        """
        # Noted first, and asked for by close last: one of the two sees the other.
        self._holds.add(hold := object())
        try:
            return lib.hfs_ops(self.c), lambda: self._holds.discard(hold)
        except StreamStuck:
            self._holds.discard(hold)
            raise

    def forked(self) -> None:
        """In a forked child it is closed: its thread is the parent's."""
        self._stream = None

    def close(self, timeout_s: float = 5.0) -> None:
        """
        Run what is enqueued, then end the thread. Closing twice is harmless.

        Raises StreamStuck where that takes longer than ``timeout_s``, and where a region, a session or a shim on it is not
        closed: nothing is freed and the stream goes on.
        """
        # Taken before it is freed: whatever interrupts this, it is not freed twice.
        stream, self._stream = self._stream, None
        if stream is not None and self._holds:
            self._stream = stream
            raise StreamStuck("the soft stream is in use: what is on it (a session, a shim) has not been closed")
        if stream is not None and lib.hfs_close(stream, int(timeout_s * NS)) < 0:
            self._stream = stream
            raise StreamStuck(f"the soft stream did not get past what it was given within {timeout_s:g} s")


def _accepted(result: int, what: str) -> None:
    if result < 0:
        raise StreamFault(-result, f"{what} ({os.strerror(-result)})")
