# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver's table: opened at run time, counted, made to fail, replaced."""

from __future__ import annotations

import pytest

from cuda_harness import cuda, library

from engine_shim import CudaDriver, DriverFault, StreamFault
from engine_shim._engine import ffi
from engine_shim.cudadriver import LIBRARY, functions
from engine_shim.environment import LIBCUDA


OUT_OF_MEMORY = 2


def test_a_machine_without_a_driver_says_so() -> None:
    with pytest.raises(DriverFault, match=r"the CUDA driver cannot be opened: no-such-library\.so"):
        CudaDriver("no-such-library.so")


def test_a_library_that_is_no_driver_is_none() -> None:
    with pytest.raises(DriverFault, match=r"libm\.so\.6 has no cuInit: a driver too old, or none"):
        CudaDriver("libm.so.6")


def test_the_environment_names_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBCUDA, str(library()))
    assert CudaDriver().library == str(library())
    monkeypatch.delenv(LIBCUDA)
    monkeypatch.setattr("engine_shim.cudadriver.LIBRARY", "no-such-library.so")
    with pytest.raises(DriverFault):
        CudaDriver()
    assert LIBRARY == "libcuda.so.1"


def test_each_call_is_counted_by_its_function() -> None:
    with cuda() as gpu:
        before = gpu.driver.calls()
        gpu.stream.marker()
        gpu.stream.marker()
        after = gpu.driver.calls()
        assert after["cuEventRecord"] - before.get("cuEventRecord", 0) == 2
        assert {name for name in after if after[name] != before.get(name, 0)} == {"cuEventRecord"}
        assert "cuMemcpy2DAsync" in functions()
        assert "cuMemcpy2DAsync" not in after


def test_the_nth_call_of_a_function_fails_with_the_drivers_own_name() -> None:
    with cuda() as gpu:
        gpu.driver.fail_nth(2, OUT_OF_MEMORY, function="cuEventRecord")
        gpu.stream.marker()
        with pytest.raises(StreamFault, match="cuEventRecord: CUDA_ERROR_OUT_OF_MEMORY: out of memory"):
            gpu.stream.marker()
        gpu.stream.marker()
        gpu.driver.fail_nth(1, OUT_OF_MEMORY, function="cuEventRecord", onwards=True)
        for _ in range(3):
            with pytest.raises(StreamFault):
                gpu.stream.marker()


def test_a_fault_without_a_function_meets_only_what_enqueues() -> None:
    with cuda() as gpu:
        memory = gpu.stream.alloc(64)
        pinned = gpu.stream.host_alloc(64)
        gpu.driver.fail_nth(1, OUT_OF_MEMORY)
        gpu.drained()  # events are no copies
        with pytest.raises(StreamFault, match="cuMemcpyHtoDAsync"):
            gpu.stream.copy(memory, pinned, 64, 1)
        gpu.stream.copy(memory, pinned, 64, 1)
        gpu.stream.host_free(pinned)
        gpu.stream.free(memory)


def test_a_function_can_be_replaced() -> None:
    with cuda() as gpu:

        @ffi.callback("int(int *, int, int)")  # type: ignore[untyped-decorator]
        def attribute(value: ffi.CData, number: int, device: int) -> int:
            value[0] = 100 + number
            return 0

        before = gpu.driver.replace("cuDeviceGetAttribute", int(ffi.cast("uintptr_t", attribute)))
        assert gpu.driver.attribute(0, 7) == 107
        gpu.driver.replace("cuDeviceGetAttribute", before)
        assert gpu.driver.attribute(0, 41) == 1


def test_a_device_that_is_not_there() -> None:
    with cuda() as gpu:
        assert gpu.driver.devices == 1
        with pytest.raises(DriverFault, match="cuDeviceGet: CUDA_ERROR_INVALID_VALUE"):
            gpu.driver.device_name(1)
