# SPDX-License-Identifier: Apache-2.0
"""The geometry's bounds and the layout hash, as native/hostflag.h defines them."""

from __future__ import annotations

import bisect

from typing import Any

import msgspec

from hostflag._hostflag import ffi, lib
from hostflag.messages import Geometry


def to_c(geometry: Geometry) -> Any:
    """Return a ``struct hf_geometry *`` owned by the caller."""
    return ffi.new("struct hf_geometry *", msgspec.structs.asdict(geometry))


def from_c(struct: Any) -> Geometry:
    """Return the geometry that a ``struct hf_geometry`` holds."""
    return Geometry(**{name: int(getattr(struct, name)) for name in Geometry.__struct_fields__})


def fault(geometry: Geometry) -> str | None:
    """Return what is wrong with a geometry, naming the field and its bounds, or None."""
    reason = lib.hf_geometry_fault(to_c(geometry))
    return None if reason == ffi.NULL else _text(reason)


def least_ring_bytes(geometry: Geometry) -> int | None:
    """Return the least ring with which this geometry is within its bounds, bytes, None: there is none."""
    sizes = range(lib.HF_PART_ALIGN, lib.HF_MAX_REGION_BYTES + 1, lib.HF_PART_ALIGN)
    at = bisect.bisect_left(
        sizes, True, key=lambda size: fault(msgspec.structs.replace(geometry, ring_bytes=size)) is None
    )
    return sizes[at] if at < len(sizes) else None


def region_bytes(geometry: Geometry) -> int:
    """
    Return the size in bytes of a region of this geometry.

    Raises ValueError with the reason where the geometry is out of bounds.
    """
    layout = ffi.new("struct hf_layout *")
    if lib.hf_layout_of(to_c(geometry), layout) < 0:
        reason = fault(geometry)
        raise ValueError(reason or f"the region would be larger than {lib.HF_MAX_REGION_BYTES} bytes")
    return int(layout.bytes)


def layout_hash() -> str:
    """Return the layout hash of this build as 16 hex digits: HELLO carries it."""
    return f"{lib.hf_layout_hash():016x}"


def _text(pointer: Any) -> str:
    text = ffi.string(pointer)
    return text.decode() if isinstance(text, bytes) else str(text)
