# SPDX-License-Identifier: Apache-2.0
"""The self-test on a real device: it passes, and it refuses what is injected where the driver is called."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine_hand import PATIENCE_S, until
from gpu_harness import GEOMETRY, daemon, python, worker

from engine_shim import CudaDriver, CudaStream
from engine_shim._engine import ffi, lib
from engine_shim.selftest import Report, SelfTest, release_kept
from hostflag.messages import EngineIdentity


OUT_OF_MEMORY = 2
REFUSAL = """
from engine_shim import CudaDriver, CudaStream
CudaDriver().use_primary(0)
with CudaStream.create() as stream:
    print(stream.async_refusal)
"""
ATTRIBUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int)
COPY_2D = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
BATCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint)


@pytest.fixture
def path(short_dir: Path) -> Iterator[Path]:
    with worker() as endpoint, daemon(short_dir, endpoint) as process:
        yield process.path


def tried(stream: CudaStream, path: Path, limit_s: float = 30.0) -> Report:
    identity = EngineIdentity(name="gpu-selftest", pid=os.getpid())
    return SelfTest(stream, path, geometry=GEOMETRY, model="test", engine=identity, limit_s=limit_s).run()


@contextmanager
def replaced(driver: CudaDriver, function: str, make: Callable[[int], Any]) -> Iterator[None]:
    """Put what ``make`` returns for the address of a function in that function's place, for a while."""
    before = driver.replace(function, 0)
    other = make(before)
    driver.replace(function, ctypes.cast(other, ctypes.c_void_p).value or 0)
    try:
        yield
    finally:
        driver.replace(function, before)


@contextmanager
def opened() -> Iterator[tuple[CudaDriver, CudaStream]]:
    driver = CudaDriver()
    driver.use_primary(0)
    with CudaStream.create(driver=driver) as stream:
        yield driver, stream


def test_it_passes_and_launches_nothing(path: Path) -> None:
    with opened() as (driver, stream):
        report = tried(stream, path)
        print(report.text())
        assert report.passed, report.reason
        assert "cuLaunchKernel" not in driver.calls()


@pytest.mark.parametrize("attribute", [lib.HFC_HOST_REGISTER, lib.HFC_STREAM_MEM_OPS, lib.HFC_HOST_POINTER])
def test_a_device_without_the_attribute_is_refused(path: Path, attribute: int) -> None:
    driver = CudaDriver()
    driver.use_primary(0)

    def without(address: int) -> object:
        real = ATTRIBUTE(address)

        def ask(value: object, number: int, device: int) -> int:
            result = int(real(value, number, device))
            if number == attribute:
                value[0] = 0  # type: ignore[index]
            return result

        return ATTRIBUTE(ask)

    with replaced(driver, "cuDeviceGetAttribute", without), CudaStream.create(driver=driver) as stream:
        report = tried(stream, path)
        print(report.reason)
        if attribute == lib.HFC_HOST_POINTER:
            # Other addresses for registered memory are translated: not a reason to refuse.
            assert report.passed, report.reason
        else:
            assert not report.passed
            assert report.reason


def test_a_failed_registration_is_refused(path: Path) -> None:
    with opened() as (driver, stream):
        driver.fail_nth(1, OUT_OF_MEMORY, function="cuMemHostRegister", onwards=True)
        report = tried(stream, path)
        driver.fail_nth(0, 0)
        assert not report.passed
        assert report.reason is not None
        assert "cuMemHostRegister" in report.reason


def test_a_corrupted_echo_is_refused(path: Path) -> None:
    """A copy of rows that loses its last bytes, once in a while."""
    with opened() as (driver, stream):
        calls = 0

        def lossy(address: int) -> object:
            real = COPY(address)

            def copy(to: int, frm: int, nbytes: int, on: int) -> int:
                nonlocal calls
                calls += 1
                short = nbytes > 4096 and calls % 7 == 0
                return int(real(to, frm, nbytes - 4096 if short else nbytes, on))

            return COPY(copy)

        def narrow(address: int) -> object:
            real = COPY_2D(address)

            def copy(what: int, on: int) -> int:
                nonlocal calls
                calls += 1
                width = ctypes.c_size_t.from_address(what + 112)  # CUDA_MEMCPY2D.WidthInBytes
                if calls % 7 == 0:
                    width.value //= 2
                return int(real(what, on))

            return COPY_2D(copy)

        with replaced(driver, "cuMemcpyDtoHAsync", lossy), replaced(driver, "cuMemcpy2DAsync", narrow):
            report = tried(stream, path)
        print(report.reason)
        assert not report.passed
        assert report.reason


def test_a_stream_that_never_moves_is_refused_within_its_time(path: Path) -> None:
    """Every write and wait waits for a word first that nobody writes. Its memory is kept; the word lets it go in the end."""
    with opened() as (driver, stream):
        word = stream.host_alloc(4096)
        wait = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
        library = ctypes.CDLL(driver.library)
        wait_word = wait(ctypes.cast(library.cuStreamWaitValue32_v2, ctypes.c_void_p).value or 0)

        def stuck(address: int) -> object:
            real = BATCH(address)

            def batch(on: int, count: int, ops: int, flags: int) -> int:
                wait_word(on, word, 1, 0)
                return int(real(on, count, ops, flags))

            return BATCH(batch)

        with replaced(driver, "cuStreamBatchMemOp", stuck):
            began = threading.active_count()
            report = tried(stream, path, limit_s=8.0)
            print(report.reason)
            assert not report.passed
            assert report.stuck
            before = driver.calls()
            for function in ("cuMemHostUnregister", "cuMemFree"):
                assert driver.calls().get(function, 0) == before.get(function, 0)
            ffi.cast("uint32_t *", word)[0] = 1
        until(lambda: threading.active_count() <= began + 1, "what was stuck goes on")
        assert release_kept(), "it moves again, so it is taken down"


@pytest.mark.parametrize("connections", ["1", "2", "3"])
def test_too_few_connections_are_refused_with_the_reason(connections: str) -> None:
    said = python(REFUSAL, CUDA_DEVICE_MAX_CONNECTIONS=connections)
    assert said.startswith(f"CUDA_DEVICE_MAX_CONNECTIONS={connections}: while one stream is parked, ")


def test_four_connections_are_for_the_self_test() -> None:
    assert python(REFUSAL, CUDA_DEVICE_MAX_CONNECTIONS="4") == "None"


def test_with_two_connections_the_self_test_refuses(path: Path, tmp_path: Path) -> None:
    saved = tmp_path / "report.json"
    ended = subprocess.run(
        [sys.executable, "-m", "engine_shim.qualify", f"--socket={path}", "--rounds=20", f"--json={saved}"],
        env=os.environ | {"CUDA_DEVICE_MAX_CONNECTIONS": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    report = json.loads(saved.read_text())
    assert not report["passed"]
    assert report["reason"].startswith("CUDA_DEVICE_MAX_CONNECTIONS=2: while one stream is parked, ")
