# SPDX-License-Identifier: Apache-2.0
"""A CUDA stream without rounds: which ones are taken, what memory and markers do, how it ends. On the stand-in for libcuda."""

from __future__ import annotations

import threading

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cuda_harness import Cuda, cuda

from engine_shim import CudaStream, StreamRefused, StreamStuck
from engine_shim._engine import ffi, lib
from engine_shim.cudastream import TO_DEVICE, TO_HOST
from engine_shim.environment import COPIES


def bytes_at(address: int, count: int) -> bytes:
    return bytes(ffi.buffer(ffi.cast("char *", address), count))


@pytest.mark.parametrize(
    ("handle", "why"),
    [
        (0, r"legacy null stream.*hand that one over"),
        (1, r"legacy null stream"),
        (2, r"per-thread default stream.*a stream that was created"),
    ],
)
def test_a_stream_that_stands_for_others_is_refused_with_what_to_do(handle: int, why: str) -> None:
    with cuda() as gpu, pytest.raises(StreamRefused, match=why):
        CudaStream(handle, driver=gpu.driver)


def test_a_capturing_stream_is_refused() -> None:
    with cuda() as gpu:
        gpu.fake.capture(gpu.stream, on=True)
        with pytest.raises(StreamRefused, match="being captured into a graph"):
            CudaStream(gpu.stream.handle, driver=gpu.driver)
        gpu.fake.capture(gpu.stream, on=False)
        CudaStream(gpu.stream.handle, driver=gpu.driver).close()


def test_memory_comes_and_goes_while_another_stream_is_captured() -> None:
    """A capture of mode "global", torch's own, is spoilt by a cuMemFree anywhere in the process. The stream's end gives memory back, too."""
    with cuda() as gpu, cuda() as other:
        freed = gpu.stream.alloc(4096)
        spoilt = gpu.fake.captures_broken
        other.fake.capture(other.stream, on=True)
        gpu.stream.free(freed)
        gpu.stream.free(gpu.stream.alloc(4096))
        gpu.stream.close()
        other.fake.capture(other.stream, on=False)
        assert gpu.fake.captures_broken == spoilt


def in_a_thread(what: Callable[[], Any]) -> Any:
    """Return what is returned, or raised, in a thread of its own."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(what())
        except StreamRefused as refused:
            came.append(refused)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return came[0]


def test_a_thread_without_a_context_is_told_to_make_one() -> None:
    with cuda() as gpu:
        refused = in_a_thread(lambda: CudaStream(gpu.stream.handle, driver=gpu.driver))
        assert isinstance(refused, StreamRefused)
        assert "no CUDA context is current" in str(refused)


def test_a_thread_can_take_the_streams_context() -> None:
    with cuda() as gpu:

        def use() -> int:
            gpu.stream.use()
            return gpu.stream.marker()

        assert gpu.stream.wait(in_a_thread(use), 5.0)


@pytest.mark.parametrize("of", ["cuda_stream", "ptr", "__cuda_stream__"])
def test_a_stream_object_says_its_handle(of: str) -> None:
    with cuda() as gpu:
        handle = gpu.stream.handle
        said: Any = SimpleNamespace(**{of: (lambda: (0, handle)) if of == "__cuda_stream__" else handle})
        with CudaStream(said, driver=gpu.driver) as stream:
            assert stream.handle == handle
        with pytest.raises(TypeError, match="is no CUDA stream"):
            CudaStream(SimpleNamespace(), driver=gpu.driver)


@pytest.mark.parametrize(
    ("connections", "who"), [("1", "every other stream"), ("2", "other streams"), ("3", "other streams")]
)
def test_too_few_connections_refuse_parked_rounds(monkeypatch: pytest.MonkeyPatch, connections: str, who: str) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
    with cuda() as gpu:
        assert gpu.stream.async_refusal is not None
        assert f"={connections}: while one stream is parked, {who} of the process stand" in gpu.stream.async_refusal


@pytest.mark.parametrize("connections", ["", "0", "4", "32", "many", "9" * 5000])
def test_other_numbers_of_connections_are_for_the_self_test(monkeypatch: pytest.MonkeyPatch, connections: str) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections)
    with cuda() as gpu:
        assert gpu.stream.async_refusal is None


@pytest.mark.parametrize(
    ("number", "name"),
    [(lib.HFC_HOST_REGISTER, "HOST_REGISTER_SUPPORTED"), (lib.HFC_STREAM_MEM_OPS, "CAN_USE_64_BIT_STREAM_MEM_OPS")],
)
def test_a_device_without_an_attribute_refuses_parked_rounds(number: int, name: str) -> None:
    with cuda() as gpu:
        assert gpu.stream.async_refusal is None
        gpu.fake.attribute(number, 0)
        try:
            with CudaStream(gpu.stream.handle, driver=gpu.driver) as stream:
                assert stream.async_refusal is not None
                assert f"{name} is 0" in stream.async_refusal
        finally:
            gpu.fake.attribute(number, 1)


def test_device_memory_is_zeroed_and_copied_to_and_from() -> None:
    with cuda() as gpu:
        memory, there, back = gpu.stream.alloc(256), gpu.stream.host_alloc(256), gpu.stream.host_alloc(256)
        assert bytes_at(memory, 256) == bytes(256)
        ffi.buffer(ffi.cast("char *", there), 256)[:] = bytes(range(256))
        gpu.stream.copy(memory, there, 256, TO_DEVICE)
        gpu.stream.copy(back, memory, 256, TO_HOST)
        gpu.drained()
        assert bytes_at(back, 256) == bytes(range(256))
        gpu.stream.free(memory)
        gpu.stream.host_free(there)
        gpu.stream.host_free(back)


def park(gpu: Cuda) -> int:
    """Park the stream on a word of pinned memory; return its address."""
    word = gpu.stream.host_alloc(4)
    gpu.stream.wait_word(word, 1)
    gpu.parks()
    return word


def go_on(gpu: Cuda, word: int) -> None:
    ffi.cast("uint32_t *", word)[0] = 1
    gpu.drained()
    gpu.stream.host_free(word)


def test_a_marker_is_reached_once_the_stream_is_past_it() -> None:
    with cuda() as gpu:
        first = gpu.stream.marker()
        assert gpu.stream.wait(first, 5.0)
        word = park(gpu)
        second = gpu.stream.marker()
        assert gpu.stream.reached(first)
        assert not gpu.stream.reached(second)
        assert not gpu.stream.wait(second, 0.05)
        go_on(gpu, word)
        assert gpu.stream.reached(second)
        assert second > first


def test_a_wait_is_cyclic() -> None:
    with cuda() as gpu:
        word = gpu.stream.host_alloc(4)
        ffi.cast("uint32_t *", word)[0] = 3
        gpu.stream.wait_word(word, 0xFFFF_FFFE)
        gpu.drained()
        gpu.stream.host_free(word)


def test_memory_is_neither_asked_for_nor_freed_through_a_parked_stream() -> None:
    with cuda() as gpu:
        word = park(gpu)
        held_up = gpu.fake.held_up
        memory = gpu.stream.alloc(64)
        gpu.stream.free(memory)
        assert gpu.fake.held_up == held_up
        assert "cuMemFree" not in gpu.driver.calls()
        go_on(gpu, word)


def test_a_parked_stream_is_not_closed_and_keeps_its_memory() -> None:
    with cuda() as gpu:
        gpu.stream.free(gpu.stream.alloc(64))
        word = park(gpu)
        with pytest.raises(StreamStuck, match="its memory is kept"):
            gpu.stream.close(0.05)
        assert "cuMemFree" not in gpu.driver.calls()
        go_on(gpu, word)
        gpu.stream.close()
        gpu.stream.close()
        assert gpu.driver.calls()["cuMemFree"] == 1


def test_a_module_that_is_loaded_behind_a_parked_stream_waits_for_it() -> None:
    with cuda() as gpu:
        word = park(gpu)
        loader = threading.Thread(target=gpu.stream.load_module)
        loader.start()
        loader.join(0.05)
        assert loader.is_alive()
        go_on(gpu, word)
        loader.join()


def test_copies_are_put_together_where_the_driver_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COPIES, raising=False)
    with cuda() as gpu:
        with CudaStream(gpu.stream.handle, driver=gpu.driver) as stream:
            assert stream.copies == 1
        before = gpu.driver.replace("cuMemcpyBatchAsync", 0)
        with CudaStream(gpu.stream.handle, driver=gpu.driver) as stream:
            assert stream.copies == 0
        gpu.driver.replace("cuMemcpyBatchAsync", before)
        monkeypatch.setenv(COPIES, "2")
        with CudaStream(gpu.stream.handle, driver=gpu.driver) as stream:
            assert stream.copies == 2
        monkeypatch.setenv(COPIES, "many")
        with pytest.raises(StreamRefused, match=f"{COPIES}='many': allowed is 0, 1 or 2"):
            CudaStream(gpu.stream.handle, driver=gpu.driver)


def test_copies_cannot_be_put_together_where_the_driver_cannot() -> None:
    with cuda(copies=2) as gpu:
        before = gpu.driver.replace("cuMemcpy3DBatchAsync", 0)
        try:
            with pytest.raises(StreamRefused, match="cannot put copies together"):
                CudaStream(gpu.stream.handle, driver=gpu.driver, copies=2)
        finally:
            gpu.driver.replace("cuMemcpy3DBatchAsync", before)
