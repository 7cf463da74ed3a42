# SPDX-License-Identifier: Apache-2.0
"""What a worker's reply can be turned into."""

from __future__ import annotations

import enum
import os
import struct

from collections.abc import Callable
from typing import Final


_HEADER: Final = 24  # struct hw_header: magic, version, type, session, round, body_bytes
_TYPE_AT, _SESSION_AT, _ROUND_AT, _BODY_AT = 6, 8, 16, 20
_COUNT_AT, _DRAFTS_AT, _IDS_AT = _HEADER + 4, _HEADER + 8, _HEADER + 16
_NO_STATUS: Final = 99


class Deed(enum.IntEnum):
    """``LATE``: held back until the session's next reply on another connection, and sent ahead of it. From ``HUGE`` on: without end."""

    NONE = 0
    GARBAGE = 1
    NO_HEADER = 2
    OTHER_VERSION = 3
    OTHER_TYPE = 4
    OTHER_SESSION = 5
    OTHER_ROUND = 6
    SHORT = 7
    LONG = 8
    STATUS = 9
    COUNT = 10
    DRAFTS = 11
    ID_BELOW = 12
    ID_ABOVE = 13
    ID_FAR = 14
    LATE = 15
    HUGE = 16
    ENDLESS = 17
    SPAM = 18


def _set(code: str, at: int, value: int) -> Callable[[bytearray], None]:
    return lambda whole: struct.pack_into(code, whole, at, value)


def _cut(whole: bytearray) -> None:
    del whole[-1:]
    struct.pack_into("<I", whole, _BODY_AT, len(whole) - _HEADER)


def _grow(whole: bytearray) -> None:
    whole += bytes(8)
    struct.pack_into("<I", whole, _BODY_AT, len(whole) - _HEADER)


def _randomise(whole: bytearray) -> None:
    whole[:] = os.urandom(len(whole))


def _other_session(whole: bytearray) -> None:
    whole[_SESSION_AT] ^= 1


def _other_round(whole: bytearray) -> None:
    (number,) = struct.unpack_from("<I", whole, _ROUND_AT)
    struct.pack_into("<I", whole, _ROUND_AT, (number - 5) % (1 << 32))


_CHANGES: Final[dict[Deed, Callable[[bytearray], None]]] = {
    Deed.GARBAGE: _randomise,
    Deed.NO_HEADER: lambda whole: whole.clear(),
    Deed.OTHER_VERSION: _set("<H", 4, 2),
    Deed.OTHER_TYPE: _set("<H", _TYPE_AT, 99),
    Deed.OTHER_SESSION: _other_session,
    Deed.OTHER_ROUND: _other_round,
    Deed.SHORT: _cut,
    Deed.LONG: _grow,
    Deed.STATUS: _set("<I", _HEADER, _NO_STATUS),
    Deed.COUNT: _set("<I", _COUNT_AT, 15),
    Deed.DRAFTS: _set("<I", _DRAFTS_AT, 4),
    Deed.ID_BELOW: _set("<q", _IDS_AT, -1),
    Deed.ID_ABOVE: _set("<q", _IDS_AT, 1 << 30),
    Deed.ID_FAR: _set("<q", _IDS_AT, 1 << 62),
}


def done_to(reply: bytes, deed: Deed) -> bytes:
    """Return what a REPLY becomes. ``deed``: one that changes it."""
    whole = bytearray(reply)
    _CHANGES[deed](whole)
    return bytes(whole)


def session_of(message: bytes) -> int:
    """Return the session that a message names, 0 where it is too short."""
    return int(struct.unpack_from("<Q", message, _SESSION_AT)[0]) if len(message) >= _HEADER else 0


def type_of(message: bytes) -> int:
    """Return a message's type, 0 where it is too short."""
    return int(struct.unpack_from("<H", message, _TYPE_AT)[0]) if len(message) >= _HEADER else 0
