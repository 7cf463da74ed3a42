# SPDX-License-Identifier: Apache-2.0
"""The sizes that OPEN names: what no session can have is refused before anything is made for it."""

from __future__ import annotations

from typing import Final

import pytest

from worker_peer import GEOMETRY, opening

from hostflag._hostflag import ffi, lib
from hostflag.control import SessionGeometry
from hostflag.messages import Geometry
from hostflag.wire import MAX_PART_BYTES, BadMessage, decode_control, decode_header, encode_control


REPLY_HEAD_BYTES: Final = ffi.sizeof("struct hw_header") + ffi.sizeof("struct hw_reply")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("row_bytes", 0),
        ("row_bytes", 12),
        ("row_bytes", lib.HF_MAX_ROW_BYTES + 8),
        ("window", 0),
        ("drafts", 0),
        ("drafts", lib.HF_MAX_DRAFTS + 1),
        ("vocab", 0),
        ("vocab", 1 << 31),
        ("max_requests", 9),  # more than state_slots
        ("max_requests", 0),
        ("state_slots", lib.HF_MAX_STATE_SLOTS + 1),
        ("extra_bytes", -1),
    ],
)
def test_a_geometry_out_of_bounds_is_refused(field: str, value: int) -> None:
    geometry = SessionGeometry(
        **{name: getattr(GEOMETRY, name) for name in GEOMETRY.__struct_fields__} | {field: value}
    )
    part = encode_control(1, opening(geometry))
    with pytest.raises(BadMessage, match=field):
        decode_control(decode_header(part), part)


def largest(extra_bytes: int) -> SessionGeometry:
    geometry = Geometry(
        row_bytes=lib.HF_MAX_ROW_BYTES,
        drafts=lib.HF_MAX_DRAFTS,
        vocab=0x7FFF_FFFF,
        max_requests=lib.HF_MAX_REQUESTS,
        state_slots=lib.HF_MAX_STATE_SLOTS,
        extra_bytes=extra_bytes,
        window=1 << 20,
    )
    return SessionGeometry.of(geometry)


MOST_EXTRA_BYTES: Final = (MAX_PART_BYTES - REPLY_HEAD_BYTES) // lib.HF_MAX_REQUESTS - 8 * lib.HF_MAX_DRAFTS


def test_the_largest_geometry_whose_replies_fit_a_part_can_open() -> None:
    message = opening(largest(MOST_EXTRA_BYTES))
    part = encode_control(1, message)
    assert decode_control(decode_header(part), part) == message


def test_a_geometry_whose_replies_fit_no_part_is_refused() -> None:
    """A round of a few KiB would have the worker put together a reply of 256 MiB, which no daemon takes."""
    part = encode_control(1, opening(largest(MOST_EXTRA_BYTES + 1)))
    with pytest.raises(BadMessage, match="extra_bytes smaller"):
        decode_control(decode_header(part), part)
