# SPDX-License-Identifier: Apache-2.0
"""The soft stream by itself: order, markers, a full queue, faults, an end that does not lose anything."""

from __future__ import annotations

import ctypes
import errno
import threading
import time

from pathlib import Path

import pytest

from engine_harness import PATIENCE_S, drained, until

from engine_shim import SoftStream, StreamFault, StreamStuck
from engine_shim._engine import lib


DEPTH = int(lib.HFS_DEPTH)
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def address(kernel: object) -> int:
    value = ctypes.cast(kernel, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert value is not None
    return value


class Gate:
    """A kernel that keeps the stream until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()
        self._kernel = KERNEL(self._run)

    def _run(self, _: int | None) -> None:
        self.entered.set()
        self._open.wait(PATIENCE_S)

    def close(self, stream: SoftStream) -> None:
        stream.call(address(self._kernel), 0)

    def open(self) -> None:
        self._open.set()


def test_operations_run_in_order() -> None:
    source = (ctypes.c_int64 * 64)(*range(64))
    to = (ctypes.c_int64 * 64)()
    seen: list[int] = []
    with SoftStream() as stream:
        kernel = KERNEL(lambda _: seen.append(to[63]))
        stream.copy(ctypes.addressof(to), ctypes.addressof(source), 64 * 8)
        stream.call(address(kernel), 0)
        stream.copy(ctypes.addressof(to) + 63 * 8, ctypes.addressof(source), 8)
        stream.call(address(kernel), 0)
        drained(stream)
    assert seen == [63, 0]
    assert list(to) == [*range(63), 0]


def test_a_kernel_gets_its_argument() -> None:
    got: list[int | None] = []
    kernel = KERNEL(got.append)
    with SoftStream() as stream:
        stream.call(address(kernel), 4711)
        drained(stream)
    assert got == [4711]


def test_markers_tell_how_far_the_stream_is() -> None:
    gate = Gate()
    with SoftStream() as stream:
        first = stream.marker()
        assert stream.reached(first), "nothing enqueued, nothing to do"
        gate.close(stream)
        second = stream.marker()
        assert second > first
        assert not stream.reached(second)
        assert not stream.wait(second, 0.05)
        gate.open()
        assert stream.wait(second, PATIENCE_S)
        assert stream.reached(second)


def test_work_takes_its_time_and_no_cpu() -> None:
    with SoftStream() as stream:
        began, cpu = time.monotonic(), time.process_time()
        for _ in range(20):
            stream.work(10_000_000)
        drained(stream)
        assert time.monotonic() - began >= 0.2
        assert time.process_time() - cpu < 0.1


def test_a_full_queue_holds_up_whoever_enqueues_until_there_is_room() -> None:
    gate = Gate()
    accepted = 0

    def enqueue() -> None:
        nonlocal accepted
        for _ in range(DEPTH + 10):
            stream.work(0)
            accepted += 1

    with SoftStream() as stream:
        gate.close(stream)
        gate.entered.wait(PATIENCE_S)
        thread = threading.Thread(target=enqueue)
        thread.start()
        until(lambda: accepted >= DEPTH - 1, "the queue takes its depth")
        time.sleep(0.05)
        assert accepted == DEPTH - 1, "the operation that runs still has its place"
        assert thread.is_alive()
        gate.open()
        thread.join(PATIENCE_S)
        assert accepted == DEPTH + 10
        drained(stream)


def test_several_threads_enqueue_without_losing_anything() -> None:
    count = 0

    def add(_: int | None) -> None:
        nonlocal count
        count += 1

    def enqueue() -> None:
        for _ in range(500):
            stream.call(address(kernel), 0)

    kernel = KERNEL(add)
    with SoftStream() as stream:
        threads = [threading.Thread(target=enqueue) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        drained(stream)
        assert (count, stream.marker()) == (2000, 2000)


def test_the_nth_operation_fails_once_and_is_not_enqueued() -> None:
    with SoftStream() as stream:
        stream.fail_nth(2, errno.EIO)
        stream.work(0)
        with pytest.raises(StreamFault) as fault:
            stream.work(0)
        assert fault.value.error == errno.EIO
        assert stream.marker() == 1
        stream.work(0)
        stream.fail_nth(1, errno.EIO)
        stream.fail_nth(0, 0)
        stream.work(0)
        drained(stream)
        assert stream.marker() == 3


def test_close_runs_what_is_enqueued() -> None:
    seen: list[int] = []
    kernel = KERNEL(lambda _: seen.append(1))
    stream = SoftStream()
    for _ in range(100):
        stream.call(address(kernel), 0)
    stream.close()
    stream.close()
    assert len(seen) == 100
    with pytest.raises(StreamStuck, match="closed"):
        stream.work(0)


def test_a_stuck_stream_is_not_freed_and_goes_on() -> None:
    gate = Gate()
    stream = SoftStream()
    gate.close(stream)
    with pytest.raises(StreamStuck):
        stream.close(timeout_s=0.05)
    stream.work(0)
    gate.open()
    stream.close(timeout_s=PATIENCE_S)


def test_streams_come_and_go_without_a_trace() -> None:
    def threads() -> int:
        return sum(1 for _ in Path("/proc/self/task").iterdir())

    before = threads()
    for _ in range(50):
        with SoftStream() as stream:
            stream.work(0)
    assert threads() == before
