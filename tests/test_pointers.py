# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries by address: what dlpack and the CUDA array interface say of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine_shim.pointers import View, address_of, handle_of, source_of, view_of


class OnDevice:
    """A numpy array that says it is in CUDA memory, as torch's are (dlpack alone) or CuPy's."""

    def __init__(self, array: npt.NDArray[Any], *, dlpack: bool) -> None:
        if dlpack:
            self._array = array
            self.__dlpack__ = self._capsule
            self.__dlpack_device__ = lambda: (2, 0)
        else:
            self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3}

    def _capsule(self, *, stream: int) -> object:
        assert stream == -1, "nobody is made to wait"
        return self._array.__dlpack__()


@pytest.mark.parametrize("dlpack", [True, False])
def test_an_array_says_where_it_is_and_how_it_lies(dlpack: bool) -> None:
    array = np.zeros((6, 10), np.int16)
    at = array.ctypes.data
    assert view_of(OnDevice(array, dlpack=dlpack)) == View(at, (6, 10), (20, 2), 2)
    part = array[2:, 3:7]
    assert view_of(OnDevice(part, dlpack=dlpack)) == View(at + 2 * 20 + 3 * 2, (4, 4), (20, 2), 2)
    assert address_of(OnDevice(part, dlpack=dlpack)) == at + 46
    assert source_of(OnDevice(part, dlpack=dlpack)) == (at + 46, 20, 8)


@pytest.mark.parametrize("dlpack", [True, False])
def test_rows_are_contiguous(dlpack: bool) -> None:
    array = np.zeros((6, 10), np.int32)
    for wrong in (array.T, array[:, ::2], array[0]):
        with pytest.raises(ValueError, match="a 2D array with contiguous rows"):
            source_of(OnDevice(wrong, dlpack=dlpack))


def test_a_number_and_a_tuple_are_taken_as_they_are() -> None:
    assert address_of(0x1000) == 0x1000
    assert source_of((1, 2, 3)) == (1, 2, 3)


def test_what_is_no_device_array_is_refused() -> None:
    with pytest.raises(TypeError, match="ndarray is not in CUDA memory"):
        address_of(np.zeros(3))
    with pytest.raises(TypeError, match="list is no device array"):
        address_of([1])


@pytest.mark.parametrize("handle", [-1, 1 << 64])
def test_a_number_that_can_be_no_handle(handle: int) -> None:
    with pytest.raises(ValueError, match="is no handle of a CUDA stream"):
        handle_of(handle)
