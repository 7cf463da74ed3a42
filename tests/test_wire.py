# SPDX-License-Identifier: Apache-2.0
"""The network protocol in Python: what is sound comes through unchanged, what is not is named."""

from __future__ import annotations

import struct

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest

from worker_peer import GEOMETRY, Ask, make_round, opening

from hostflag._hostflag import ffi, lib
from hostflag.control import Close, Control, Opened, Refused, SessionGeometry
from hostflag.wire import (
    BadMessage,
    BadVersion,
    Kind,
    Reply,
    Round,
    Status,
    decode_control,
    decode_header,
    decode_reply,
    decode_round,
    encode_control,
    encode_header,
    encode_reply,
    encode_round,
    encode_status,
    wants_reply,
)


HEADER_BYTES: Final = ffi.sizeof("struct hw_header")
ROUND_BYTES: Final = ffi.sizeof("struct hw_round")
BIG: Final = (1 << 64) - 1
ASKS: Final = (Ask(3, 7, [5, 6, 9], anchor=999), Ask(0, 0xFFFF_FFFF), Ask(7, 1, [0], anchor=0))


def parts_of(message: Round) -> list[bytes]:
    head, rows = encode_round(message)
    return [head, bytes(rows)]


def decoded(parts: list[bytes], geometry: SessionGeometry = GEOMETRY) -> Round:
    return decode_round(decode_header(parts[0]), parts, geometry)


def poked(part: bytes, offset: int, layout: str, value: int) -> bytes:
    """Return the part with one field changed."""
    changed = bytearray(part)
    struct.pack_into("<" + layout, changed, offset, value)
    return bytes(changed)


def resized(part: bytes, size: int) -> bytes:
    """Return the part cut or filled to ``size`` bytes, with a header that says so."""
    return poked(part[:size].ljust(size, b"\0"), 20, "I", size - HEADER_BYTES)


def reply_of(ids: list[int], extra: bytes = b"", n_requests: int = 2) -> Reply:
    view = memoryview(np.array(ids, dtype=np.int64).tobytes()).cast("q")
    return Reply(9, 4, Status.OK, n_requests, view, memoryview(extra))


def decoded_reply(part: bytes, geometry: SessionGeometry = GEOMETRY) -> Reply:
    return decode_reply(decode_header(part), part, geometry)


@pytest.mark.parametrize(
    "message", [opening(), Opened(worker="w", drafter="mock"), Refused(code="c", reason="é"), Close(reason="")]
)
def test_a_control_message_comes_through(message: Control) -> None:
    part = encode_control(BIG, message)
    header = decode_header(part)
    assert (header.session, header.round, header.body_bytes) == (BIG, 0, len(part) - HEADER_BYTES)
    assert decode_control(header, part) == message


def test_a_header_is_the_c_struct() -> None:
    c = ffi.from_buffer("struct hw_header *", encode_header(Kind.PONG, BIG, 0xFFFF_FFFE, 5))
    assert (c.magic, c.version, c.type) == (lib.HW_MAGIC, lib.HW_VERSION, lib.HW_PONG)
    assert (c.session, c.round, c.body_bytes) == (BIG, 0xFFFF_FFFE, 5)


def test_a_round_comes_through_without_a_copy() -> None:
    message = make_round(ASKS, session=BIG, number=0xFFFF_FFFF)
    parts = parts_of(message)
    came = decoded(parts)
    assert came == message
    assert came.rows.obj is parts[1]
    assert came.positions.obj is parts[0]
    assert came.tokens.obj is parts[0]


@pytest.mark.parametrize("context_only", [False, True])
def test_a_round_says_whether_it_wants_a_reply(context_only: bool) -> None:
    message = make_round([Ask(1, 1, [4])], context_only=context_only)
    assert decoded(parts_of(message)).context_only is context_only
    assert wants_reply(parts_of(message)[0]) is not context_only


def test_a_round_without_rows_has_an_empty_part() -> None:
    parts = parts_of(make_round([Ask(1, 1, anchor=5)]))
    assert parts[1] == b""
    assert decoded(parts).requests[0].draft


@pytest.mark.parametrize("extra_bytes", [0, 5])
def test_a_reply_comes_through(extra_bytes: int) -> None:
    geometry = SessionGeometry(
        row_bytes=64, window=8, drafts=3, vocab=1000, max_requests=4, state_slots=8, extra_bytes=extra_bytes
    )
    reply = reply_of([0, 1, 2, 997, 998, 999], bytes(range(2 * extra_bytes)))
    assert decoded_reply(encode_reply(reply, geometry), geometry) == reply


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_a_reply_that_says_no_carries_nothing(status: Status) -> None:
    part = encode_status(9, 4, status)
    assert (decoded_reply(part).status, decoded_reply(part).n_requests) == (status, 0)
    with pytest.raises(BadMessage, match="carries nothing"):
        decoded_reply(resized(part, len(part) + 8))


def test_another_version_still_tells_type_and_session() -> None:
    with pytest.raises(BadVersion, match="version 2") as caught:
        decode_header(poked(encode_control(BIG, opening()), 4, "H", 2))
    assert (caught.value.kind, caught.value.session) == (Kind.OPEN, BIG)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda part: part[: HEADER_BYTES - 1], "too few"),
        (lambda part: b"", "too few"),
        (lambda part: poked(part, 0, "I", lib.HW_MAGIC + 1), "magic"),
        (lambda part: poked(part, 6, "H", 0), "no message type"),
        (lambda part: poked(part, 6, "H", lib.HW_TYPE_MAX), "no message type"),
        (lambda part: part + b"x", "bytes of body"),
        (lambda part: part[:-1], "bytes of body"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(spoil: Callable[[bytes], bytes], why: str) -> None:
    with pytest.raises(BadMessage, match=why):
        decode_header(spoil(encode_control(1, opening())))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"worker":"w"}',
        b'{"worker":"w","drafter":"d","more":1}',
        b'{"worker":"w","drafter":5}',
        b'{"worker":"w","drafter":"\xc3"}',
        b'{"worker":"' + b"w" * 257 + b'","drafter":"d"}',
        b'{"worker":"w","drafter":' + b"[" * 30_000,
        b'{"worker":"w","drafter":"d"}' + b" " * lib.HW_MAX_CONTROL_BYTES,
    ],
)
def test_a_body_that_does_not_decode_is_refused(body: bytes) -> None:
    part = encode_header(Kind.OPENED, 1, 0, len(body)) + body
    with pytest.raises(BadMessage, match="OPENED"):
        decode_control(decode_header(part), part)


@pytest.mark.parametrize("kind", [Kind.ROUND, Kind.REPLY, Kind.PING, Kind.PONG])
def test_a_binary_message_has_no_json(kind: Kind) -> None:
    part = encode_header(kind, 1)
    with pytest.raises(BadMessage, match="no JSON body"):
        decode_control(decode_header(part), part)


REQUEST_AT: Final = HEADER_BYTES + ROUND_BYTES
POSITIONS_AT: Final = REQUEST_AT + 3 * ffi.sizeof("struct hw_request")
TOKENS_AT: Final = POSITIONS_AT + 4 * 8


@pytest.mark.parametrize(
    ("offset", "layout", "value", "why"),
    [
        (HEADER_BYTES, "I", 0, "1 to 4"),
        (HEADER_BYTES, "I", 5, "1 to 4"),
        (HEADER_BYTES, "I", 2, "do not make parts"),
        (HEADER_BYTES + 4, "I", 3, "do not make parts"),
        (HEADER_BYTES + 4, "I", 0xFFFF_FFFF, "do not make parts"),
        (HEADER_BYTES + 8, "I", 56, "rows of 56 bytes"),
        (HEADER_BYTES + 12, "I", 2, "2 drafts"),
        (HEADER_BYTES + 16, "I", 2, "flags"),
        (HEADER_BYTES + 16, "I", 1, "context-only"),
        (HEADER_BYTES + 20, "I", 1, "reserved"),
        (REQUEST_AT, "I", 8, "slot 8"),
        (REQUEST_AT, "I", 0, "twice"),
        (REQUEST_AT + 8, "I", 4, "5 rows together"),
        (REQUEST_AT + 8, "I", 0xFFFF_FFFF, "rows together"),
        (REQUEST_AT + 12, "I", 3, "flags"),
        (REQUEST_AT + 12, "I", 0, "anchor 999"),
        (REQUEST_AT + 16, "q", -1, "anchor -1"),
        (REQUEST_AT + 16, "q", 1000, "anchor 1000"),
        (POSITIONS_AT, "q", -1, "position"),
        (TOKENS_AT, "i", -1, "token"),
        (TOKENS_AT, "i", 1000, "token"),
    ],
)
def test_a_round_that_does_not_fit_is_refused(offset: int, layout: str, value: int, why: str) -> None:
    head, rows = parts_of(make_round(ASKS))
    with pytest.raises(BadMessage, match=why):
        decoded([poked(head, offset, layout, value), rows])


def test_a_round_of_other_parts_is_refused() -> None:
    head, rows = parts_of(make_round(ASKS))
    for parts in (
        [head],
        [head, rows, b""],
        [head, rows[:-1]],
        [head, rows + b"x"],
        [resized(head, HEADER_BYTES + 8), rows],
    ):
        with pytest.raises(BadMessage):
            decoded(parts)
    for size in range(HEADER_BYTES, len(head)):
        with pytest.raises(BadMessage):
            decoded([resized(head, size), rows])


@pytest.mark.parametrize(
    ("offset", "layout", "value"),
    [(0, "I", lib.HW_STATUS_MAX), (4, "I", 1), (4, "I", 5), (8, "I", 2), (12, "I", 1), (16, "q", -1), (16, "q", 1000)],
)
def test_a_reply_that_does_not_fit_is_refused(offset: int, layout: str, value: int) -> None:
    part = encode_reply(reply_of([0, 1, 2, 3, 4, 5]), GEOMETRY)
    with pytest.raises(BadMessage):
        decoded_reply(poked(part, HEADER_BYTES + offset, layout, value))
    for size in range(HEADER_BYTES, len(part)):
        with pytest.raises(BadMessage):
            decoded_reply(resized(part, size))
