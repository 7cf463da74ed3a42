# SPDX-License-Identifier: Apache-2.0
"""Device memory and streams by address, of whatever made them: numbers, or objects that say theirs. Nothing of theirs is imported."""

from __future__ import annotations

import ctypes

from dataclasses import dataclass
from typing import Any, Final


CUDA_DEVICES: Final = frozenset({2, 3, 13})  # kDLCUDA, kDLCUDAHost, kDLCUDAManaged
NO_SYNCHRONISATION: Final = -1  # to __dlpack__: whoever asks orders its own work


class _Tensor(ctypes.Structure):
    """DLTensor, with which a DLManagedTensor begins."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


@dataclass(frozen=True, slots=True)
class View:
    """An array: its address, its shape, the bytes from one element to the next in each dimension, the bytes of an element."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int


def address_of(array: Any) -> int:
    """Return the device address of an array: a number as it is, else by ``__cuda_array_interface__`` or ``__dlpack__``."""
    return array if type(array) is int else view_of(array).address


def handle_of(stream: Any) -> int:
    """
    Return the CUDA handle of a stream: a number, or torch's, CuPy's or any other that follows ``__cuda_stream__``.

    Raises TypeError where it is none of these, ValueError where the number can be no handle.
    """
    handle = _handle_of(stream)
    if not 0 <= handle < 1 << 64:
        raise ValueError(f"{handle} is no handle of a CUDA stream: it has 64 bits and no sign")
    return handle


def _handle_of(stream: Any) -> int:
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):  # torch, CuPy
        if isinstance(handle := getattr(stream, name, None), int):
            return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise TypeError(f"{type(stream).__name__} is no CUDA stream: give its handle as a number")
    _, handle = protocol() if callable(protocol) else protocol
    return int(handle)


def view_of(array: Any) -> View:
    """Return an array's View. Raises TypeError where it is no device array."""
    # dlpack first: it knows bfloat16.
    if hasattr(array, "__dlpack__"):
        return _dlpack(array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(
            f"{type(array).__name__} is no device array: it has neither __dlpack__ nor __cuda_array_interface__"
        )
    shape = tuple(interface["shape"])
    itemsize = int(str(interface["typestr"])[2:])
    return View(int(interface["data"][0]), shape, tuple(interface.get("strides") or _packed(shape, itemsize)), itemsize)


def source_of(array: Any) -> tuple[int, int, int]:
    """
    Return (address, pitch, width) of a device array [rows, columns], in bytes, as ``Batch.set_sources`` takes it.

    Raises ValueError where its rows are not contiguous.
    """
    if type(array) is tuple:
        return array[0], array[1], array[2]
    view = view_of(array)
    if len(view.shape) != 2 or view.strides[1] != view.itemsize:
        raise ValueError(
            f"rows come from a 2D array with contiguous rows, not {view.shape} with strides {view.strides}"
        )
    return view.address, view.strides[0], view.shape[1] * view.itemsize


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = [itemsize] * len(shape)
    for index in range(len(shape) - 2, -1, -1):
        strides[index] = strides[index + 1] * shape[index + 1]
    return tuple(strides)


def _dlpack(array: Any) -> View:
    """The capsule is looked at and dropped: its memory is the array's, which the caller keeps."""
    if array.__dlpack_device__()[0] not in CUDA_DEVICES:
        raise TypeError(
            f"this {type(array).__name__} is not in CUDA memory (dlpack device {array.__dlpack_device__()})"
        )
    capsule = array.__dlpack__(stream=NO_SYNCHRONISATION)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = _Tensor.from_address(get(capsule, b"dltensor"))
    shape = tuple(tensor.shape[: tensor.ndim])
    itemsize = tensor.bits * tensor.lanes // 8
    strides = tuple(step * itemsize for step in tensor.strides[: tensor.ndim]) if tensor.strides else None
    return View((tensor.data or 0) + tensor.byte_offset, shape, strides or _packed(shape, itemsize), itemsize)
