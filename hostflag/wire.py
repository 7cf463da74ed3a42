# SPDX-License-Identifier: Apache-2.0
"""
The network protocol between daemon and worker: docs/CONTRACT.md as typed messages.

Every size, type and limit comes from native/wire.h. What arrives is checked before anything of it is used: a decoder returns
a sound message or raises BadMessage. Rows, positions, tokens and ids stay where they arrived and are handed out as views.
"""

from __future__ import annotations

import enum
import struct

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from hostflag._hostflag import ffi, lib
from hostflag.control import Close, Control, Open, Opened, Refused, SessionGeometry


Buffer = bytes | bytearray | memoryview

PROTOCOL: Final[int] = lib.HW_VERSION
MAX_CONTROL_BYTES: Final[int] = lib.HW_MAX_CONTROL_BYTES
MAX_PART_BYTES: Final[int] = lib.HW_MAX_PART_BYTES
ROUND_PARTS: Final = 2
_CODES: Final = {"uint16_t": "H", "uint32_t": "I", "uint64_t": "Q", "int64_t": "q"}
_POSITION_BYTES, _TOKEN_BYTES = 8, 4


class BadMessage(Exception):
    """What came is no message of this protocol, or does not fit its session; the text says why."""


class BadVersion(BadMessage):
    """A message of another version of this protocol. ``kind`` and ``session`` lie where they lie in every version."""

    def __init__(self, version: int, kind: int, session: int) -> None:
        super().__init__(f"the message is of version {version}, this end speaks version {PROTOCOL}")
        self.version = version
        self.kind = kind
        self.session = session


class Kind(enum.IntEnum):
    """What a message is: ``enum hw_type``."""

    OPEN = lib.HW_OPEN
    OPENED = lib.HW_OPENED
    REFUSED = lib.HW_REFUSED
    ROUND = lib.HW_ROUND
    REPLY = lib.HW_REPLY
    CLOSE = lib.HW_CLOSE
    PING = lib.HW_PING
    PONG = lib.HW_PONG


class Status(enum.IntEnum):
    """What a REPLY says of its round: ``enum hw_status``."""

    OK = lib.HW_STATUS_OK
    UNKNOWN_SESSION = lib.HW_STATUS_UNKNOWN_SESSION
    BAD_ROUND = lib.HW_STATUS_BAD_ROUND
    BUSY = lib.HW_STATUS_BUSY
    FAILED = lib.HW_STATUS_FAILED


_CONTROL: Final[dict[Kind, msgspec.json.Decoder[Control]]] = {
    Kind.OPEN: msgspec.json.Decoder(Open),
    Kind.OPENED: msgspec.json.Decoder(Opened),
    Kind.REFUSED: msgspec.json.Decoder(Refused),
    Kind.CLOSE: msgspec.json.Decoder(Close),
}
_KIND_OF: Final = {Open: Kind.OPEN, Opened: Kind.OPENED, Refused: Kind.REFUSED, Close: Kind.CLOSE}


class Header(NamedTuple):
    """The first bytes of every message. ``round``: t of ROUND and REPLY, the number of PING and PONG, else 0."""

    kind: Kind
    session: int
    round: int
    body_bytes: int


class Request(NamedTuple):
    """One request of a round. ``first_row`` counts within the round; ``anchor`` follows the newest row, -1 without ``draft``."""

    request_slot: int
    generation: int
    first_row: int
    rows: int
    draft: bool
    anchor: int


@dataclass(slots=True)
class Round:
    """A round as it travels. Views: ``positions`` int64[n_rows], ``tokens`` int32[n_rows], ``rows`` n_rows * row_bytes bytes."""

    session: int
    round: int
    context_only: bool
    row_bytes: int
    drafts: int
    requests: Sequence[Request]
    positions: memoryview
    tokens: memoryview
    rows: memoryview


@dataclass(slots=True)
class Reply:
    """The answer to a round. ``ids``: int64[n_requests * drafts], ``extra``: n_requests * extra_bytes bytes; empty unless OK."""

    session: int
    round: int
    status: Status
    n_requests: int
    ids: memoryview
    extra: memoryview


def _layout(name: str, *fields: str) -> struct.Struct:
    """Make the codec of a C struct from its declaration; the names guard the order in which it is unpacked here."""
    declared = ffi.typeof(f"struct {name}").fields or ()
    layout = struct.Struct("<" + "".join(_CODES[field.type.cname] for _, field in declared))
    if tuple(field for field, _ in declared) != fields or layout.size != ffi.sizeof(f"struct {name}"):
        raise ImportError(
            f"struct {name} of native/wire.h changed: hostflag/wire.py has to follow (or run `make native`)"
        )
    return layout


_HEADER: Final = _layout("hw_header", "magic", "version", "type", "session", "round", "body_bytes")
_ROUND: Final = _layout("hw_round", "n_requests", "n_rows", "row_bytes", "drafts", "flags", "reserved")
_REQUEST: Final = _layout("hw_request", "request_slot", "generation", "rows", "flags", "anchor")
_REPLY: Final = _layout("hw_reply", "status", "n_requests", "drafts", "extra_bytes")
_MAGIC: Final[int] = lib.HW_MAGIC
_CONTEXT_ONLY: Final[int] = lib.HW_ROUND_CONTEXT_ONLY
_DRAFT: Final[int] = lib.HW_REQUEST_DRAFT
_KINDS: Final = {int(kind): kind for kind in Kind}
_STATUSES: Final = {int(status): status for status in Status}
_NOTHING: Final = memoryview(b"")


def encode_header(kind: Kind, session: int, number: int = 0, body_bytes: int = 0) -> bytes:
    """Return the header of a message. A PING or PONG is nothing more."""
    return _HEADER.pack(_MAGIC, PROTOCOL, kind, session, number, body_bytes)


def decode_header(part: Buffer) -> Header:
    """Check the header at the start of a message's first part, and that the part is as long as it says."""
    if len(part) < _HEADER.size:
        raise BadMessage(f"{len(part)} bytes are too few for a header of {_HEADER.size}")
    magic, version, kind, session, number, body_bytes = _HEADER.unpack_from(part)
    if magic != _MAGIC:
        raise BadMessage(f"the magic is {magic:#010x}, not {_MAGIC:#010x}: this peer speaks another protocol")
    if version != PROTOCOL:
        raise BadVersion(version, kind, session)
    if kind not in _KINDS:
        raise BadMessage(f"{kind} is no message type")
    if body_bytes != len(part) - _HEADER.size:
        raise BadMessage(f"the header says {body_bytes} bytes of body, {len(part) - _HEADER.size} came")
    return Header(_KINDS[kind], session, number, body_bytes)


def encode_control(session: int, message: Control) -> bytes:
    """Return an OPEN, OPENED, REFUSED or CLOSE as one part."""
    body = msgspec.json.encode(message)
    return encode_header(_KIND_OF[type(message)], session, 0, len(body)) + body


def decode_control(header: Header, part: Buffer) -> Control:
    """Decode the JSON body of an OPEN, OPENED, REFUSED or CLOSE, whose header ``decode_header`` returned."""
    if header.body_bytes > MAX_CONTROL_BYTES:
        raise BadMessage(f"{header.kind.name} has {header.body_bytes} bytes of body, more than {MAX_CONTROL_BYTES}")
    if header.kind not in _CONTROL:
        raise BadMessage(f"{header.kind.name} has no JSON body")
    try:
        message = _CONTROL[header.kind].decode(memoryview(part)[_HEADER.size :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(f"{header.kind.name}: {error}") from error
    if isinstance(message, Open) and (fault := message.geometry.fault()):
        raise BadMessage(f"OPEN: {fault}")
    return message


def encode_round(message: Round) -> tuple[bytes, memoryview]:
    """Return the two parts of a ROUND. The daemon does this in C; this is for tests and measurements."""
    flags = _CONTEXT_ONLY if message.context_only else 0
    table = b"".join(
        _REQUEST.pack(r.request_slot, r.generation, r.rows, _DRAFT if r.draft else 0, r.anchor)
        for r in message.requests
    )
    n_rows = len(message.positions)
    numbers = _ROUND.pack(len(message.requests), n_rows, message.row_bytes, message.drafts, flags, 0)
    body = b"".join((numbers, table, message.positions, message.tokens))
    return encode_header(Kind.ROUND, message.session, message.round, len(body)) + body, message.rows


def decode_round(header: Header, parts: Sequence[Buffer], geometry: SessionGeometry) -> Round:
    """Check a ROUND against its session's geometry: sizes, slots, anchors, positions and tokens."""
    if len(parts) != ROUND_PARTS or header.body_bytes < _ROUND.size:
        raise BadMessage(f"a ROUND has {ROUND_PARTS} parts, the first with at least {_ROUND.size} bytes of body")
    head, rows = memoryview(parts[0]), memoryview(parts[1])
    n_requests, n_rows, row_bytes, drafts, flags, reserved = _ROUND.unpack_from(head, _HEADER.size)
    if row_bytes != geometry.row_bytes or drafts != geometry.drafts:
        raise BadMessage(
            f"rows of {row_bytes} bytes and {drafts} drafts do not fit a session of {geometry.row_bytes} and {geometry.drafts}"
        )
    if not 1 <= n_requests <= geometry.max_requests:
        raise BadMessage(f"{n_requests} requests, a round of this session has 1 to {geometry.max_requests}")
    if flags & ~_CONTEXT_ONLY or reserved:
        raise BadMessage(f"unknown flags {flags:#x} or a reserved field that is not 0")
    positions_at = _HEADER.size + _ROUND.size + n_requests * _REQUEST.size
    tokens_at = positions_at + n_rows * _POSITION_BYTES
    if tokens_at + n_rows * _TOKEN_BYTES != len(head) or n_rows * row_bytes != len(rows):
        raise BadMessage(
            f"{n_requests} requests with {n_rows} rows do not make parts of {len(head)} and {len(rows)} bytes"
        )
    table = head[_HEADER.size + _ROUND.size : positions_at]
    context_only = bool(flags & _CONTEXT_ONLY)
    requests = _requests(table, n_rows, geometry, context_only=context_only)
    positions = head[positions_at:tokens_at].cast("q")
    tokens = head[tokens_at:].cast("i")
    if n_rows and (min(positions) < 0 or min(tokens) < 0 or max(tokens) >= geometry.vocab):
        raise BadMessage(f"a position below 0, or a token that is not in [0, {geometry.vocab})")
    return Round(header.session, header.round, context_only, row_bytes, drafts, requests, positions, tokens, rows)


def wants_reply(part: Buffer) -> bool:
    """Whether a ROUND that was not decoded (its header was) still waits for a reply. Where that can't be read, it does."""
    if len(part) < _HEADER.size + _ROUND.size:
        return True
    flags: int = _ROUND.unpack_from(part, _HEADER.size)[4]
    return not flags & _CONTEXT_ONLY


def _requests(table: memoryview, n_rows: int, geometry: SessionGeometry, *, context_only: bool) -> list[Request]:
    requests = []
    first_row = 0
    for request_slot, generation, rows, flags, anchor in _REQUEST.iter_unpack(table):
        draft = flags == _DRAFT
        if request_slot >= geometry.state_slots:
            raise BadMessage(f"slot {request_slot}, a session of this geometry has {geometry.state_slots}")
        if (flags and not draft) or (draft and context_only):
            raise BadMessage(
                f"slot {request_slot}: flags {flags:#x} in a {'context-only ' if context_only else ''}round"
            )
        if not (0 <= anchor < geometry.vocab if draft else anchor == -1):
            raise BadMessage(f"slot {request_slot}: anchor {anchor}, not a token id (or -1 where no drafts are wanted)")
        requests.append(Request(request_slot, generation, first_row, rows, draft, anchor))
        first_row += rows
    if first_row != n_rows:
        raise BadMessage(f"the requests have {first_row} rows together, the round {n_rows}")
    if len({request.request_slot for request in requests}) != len(requests):
        raise BadMessage("a slot appears twice")
    return requests


def encode_status(session: int, number: int, status: Status) -> bytes:
    """Return a REPLY that says no: one of the statuses but OK."""
    return encode_header(Kind.REPLY, session, number, _REPLY.size) + _REPLY.pack(status, 0, 0, 0)


def encode_reply(reply: Reply, geometry: SessionGeometry) -> bytes:
    """Return a REPLY with ids as one part."""
    head = _REPLY.pack(reply.status, reply.n_requests, geometry.drafts, geometry.extra_bytes)
    body_bytes = _REPLY.size + reply.ids.nbytes + reply.extra.nbytes
    return b"".join((encode_header(Kind.REPLY, reply.session, reply.round, body_bytes), head, reply.ids, reply.extra))


def decode_reply(header: Header, part: Buffer, geometry: SessionGeometry) -> Reply:
    """Check a REPLY against its session's geometry: sizes, counts and every id. The daemon does this in C."""
    if header.body_bytes < _REPLY.size:
        raise BadMessage(f"a REPLY has at least {_REPLY.size} bytes of body, not {header.body_bytes}")
    body = memoryview(part)[_HEADER.size :]
    number, n_requests, drafts, extra_bytes = _REPLY.unpack_from(body)
    if number not in _STATUSES:
        raise BadMessage(f"{number} is no status")
    status = _STATUSES[number]
    if status is not Status.OK:
        if n_requests or len(body) != _REPLY.size:
            raise BadMessage(f"a REPLY with status {status.name} carries nothing")
        return Reply(header.session, header.round, status, 0, _NOTHING.cast("q"), _NOTHING)
    if drafts != geometry.drafts or extra_bytes != geometry.extra_bytes or n_requests > geometry.max_requests:
        raise BadMessage(f"{n_requests} requests of {drafts} drafts and {extra_bytes} bytes do not fit the session")
    extra_at = _REPLY.size + n_requests * drafts * 8
    if extra_at + n_requests * extra_bytes != len(body):
        raise BadMessage(
            f"{n_requests} requests of {drafts} drafts and {extra_bytes} bytes do not make {len(body)} bytes"
        )
    ids = body[_REPLY.size : extra_at].cast("q")
    if n_requests and (min(ids) < 0 or max(ids) >= geometry.vocab):
        raise BadMessage(f"an id that is not in [0, {geometry.vocab})")
    return Reply(header.session, header.round, status, n_requests, ids, body[extra_at:])
