# SPDX-License-Identifier: Apache-2.0
"""Whatever bytes arrive, a decoder returns a sound message or raises BadMessage: nothing else."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from worker_peer import GEOMETRY, Ask, make_round, opening

from hostflag.control import Opened
from hostflag.wire import (
    BadMessage,
    Kind,
    Round,
    Status,
    decode_control,
    decode_header,
    decode_reply,
    decode_round,
    encode_control,
    encode_header,
    encode_round,
    encode_status,
    wants_reply,
)


ROUND_HEAD, ROUND_ROWS = encode_round(make_round([Ask(1, 2, [3, 4], anchor=5), Ask(2, 3, [7])]))
SAMPLES = [
    (ROUND_HEAD, bytes(ROUND_ROWS)),
    (encode_control(1, opening()), b""),
    (encode_control(1, Opened(worker="w", drafter="d")), b""),
    (encode_status(1, 2, Status.FAILED), b""),
]


def feed(parts: list[bytes]) -> Round:
    """Decode a message as every kind that it could be taken for; return the round."""
    header = decode_header(parts[0])
    wants_reply(parts[0])
    with contextlib.suppress(BadMessage):
        decode_control(header, parts[0])
    with contextlib.suppress(BadMessage):
        decode_reply(header, parts[0], GEOMETRY)
    return decode_round(header, parts, GEOMETRY)


def check_sound(message: Round) -> None:
    """Everything that a worker relies on."""
    assert 1 <= len(message.requests) <= GEOMETRY.max_requests
    assert message.rows.nbytes == len(message.positions) * GEOMETRY.row_bytes
    assert len(message.tokens) == len(message.positions) == sum(request.rows for request in message.requests)
    assert all(position >= 0 for position in message.positions)
    assert all(0 <= token < GEOMETRY.vocab for token in message.tokens)
    for request in message.requests:
        assert request.request_slot < GEOMETRY.state_slots
        assert (0 <= request.anchor < GEOMETRY.vocab) if request.draft else request.anchor == -1


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3))
def test_random_bytes(parts: list[bytes]) -> None:
    with contextlib.suppress(BadMessage):
        check_sound(feed(parts))


@settings(deadline=None)
@given(st.sampled_from(Kind), st.binary(max_size=300), st.binary(max_size=300))
def test_random_bodies_behind_a_sound_header(kind: Kind, body: bytes, rows: bytes) -> None:
    with contextlib.suppress(BadMessage):
        check_sound(feed([encode_header(kind, 1, 2, len(body)) + body, rows]))


@settings(deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_a_few_bytes_changed(sample: tuple[bytes, bytes], data: st.DataObject) -> None:
    head = bytearray(sample[0])
    for _ in range(data.draw(st.integers(1, 4))):
        head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadMessage):
        check_sound(feed([bytes(head), sample[1]]))


@settings(deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_cut_anywhere(sample: tuple[bytes, bytes], data: st.DataObject) -> None:
    cut = sample[0][: data.draw(st.integers(0, len(sample[0]) - 1))]
    body = cut[24:]
    for head in (cut, encode_header(data.draw(st.sampled_from(Kind)), 1, 2, len(body)) + body):
        with contextlib.suppress(BadMessage):
            check_sound(feed([head, sample[1]]))
