# SPDX-License-Identifier: Apache-2.0
"""The JSON bodies of the network protocol: OPEN, OPENED, REFUSED, CLOSE. Decoded strictly: unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from hostflag._hostflag import ffi, lib
from hostflag.messages import EngineIdentity, Geometry, Text, Version


_ID_BYTES: Final = 8
_REPLY_HEAD_BYTES: Final[int] = ffi.sizeof("struct hw_header") + ffi.sizeof("struct hw_reply")


class SessionGeometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a worker needs of a session's geometry. ``row_bytes``, ``extra_bytes``: bytes; ``window``: rows."""

    row_bytes: Annotated[int, msgspec.Meta(ge=8, le=lib.HF_MAX_ROW_BYTES, multiple_of=8)]
    window: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    drafts: Annotated[int, msgspec.Meta(ge=1, le=lib.HF_MAX_DRAFTS)]
    vocab: Annotated[int, msgspec.Meta(ge=1, le=0x7FFF_FFFF)]
    max_requests: Annotated[int, msgspec.Meta(ge=1, le=lib.HF_MAX_REQUESTS)]
    state_slots: Annotated[int, msgspec.Meta(ge=1, le=lib.HF_MAX_STATE_SLOTS)]
    extra_bytes: Annotated[int, msgspec.Meta(ge=0, le=lib.HF_MAX_ROW_BYTES)] = 0

    @classmethod
    def of(cls, geometry: Geometry) -> SessionGeometry:
        """Take what a worker needs from a region's geometry."""
        return cls(**{name: getattr(geometry, name) for name in cls.__struct_fields__})

    def fault(self) -> str | None:
        """Return what no session can have, though each size is within its bounds; None where nothing is wrong."""
        if self.state_slots < self.max_requests:
            return "state_slots must be at least max_requests"
        reply = self.max_requests * (self.drafts * _ID_BYTES + self.extra_bytes) + _REPLY_HEAD_BYTES
        if reply > lib.HW_MAX_PART_BYTES:
            return f"a reply of {reply} bytes is more than a part may have, {lib.HW_MAX_PART_BYTES}: make max_requests or extra_bytes smaller"
        return None


class Open(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A session begins."""

    protocol: Version
    engine: EngineIdentity
    model: Text
    geometry: SessionGeometry


class Opened(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The session is open. ``worker`` names this worker process: another name is another process."""

    worker: Text
    drafter: Text


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The session is not open. ``code`` is for programs, ``reason`` for people: what to do."""

    code: Text
    reason: Annotated[str, msgspec.Meta(max_length=2048)]


class Close(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The session is over."""

    reason: Text


Control = Open | Opened | Refused | Close
