# SPDX-License-Identifier: Apache-2.0
"""The JSON bodies of the network protocol: OPEN, OPENED, REFUSED, CLOSE. Decoded strictly: unknown fields are refused."""

from __future__ import annotations

from typing import Annotated

import msgspec

from hostflag._hostflag import lib
from hostflag.messages import EngineIdentity, Geometry, Text


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


class Open(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A session begins."""

    protocol: int
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
