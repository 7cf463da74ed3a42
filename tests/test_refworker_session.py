# SPDX-License-Identifier: Apache-2.0
"""A session without a network: rows into contexts, drafts out, whatever the drafter does."""

from __future__ import annotations

import zlib

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st
from worker_peer import GEOMETRY, Ask, make_round, opening

from hostflag.audit import drafts_crc, rows_crc
from hostflag.control import Open, SessionGeometry
from hostflag.wire import Reply, Round, Status
from refworker import auditing
from refworker.drafter import Drafter, Ids, Key, Rows, Wanted
from refworker.mock import STEP, Mock
from refworker.session import DraftFault, Session


WITH_EXTRA: Final = SessionGeometry(
    row_bytes=64, window=8, drafts=3, vocab=1000, max_requests=4, state_slots=8, extra_bytes=6
)


def started(drafter: Drafter, geometry: SessionGeometry = GEOMETRY) -> Session:
    drafter.start(opening(geometry))
    return Session(1, b"peer", opening(geometry), drafter, 0.0)


def ids_of(reply: Reply) -> list[list[int]]:
    return np.array(reply.ids).reshape(reply.n_requests, -1).tolist()


def newest_row(message: Round, index: int) -> memoryview:
    request = message.requests[index]
    end = (request.first_row + request.rows) * message.row_bytes
    return message.rows[end - message.row_bytes : end]


def mock_ids(crc: int) -> list[int]:
    return [(crc + i * 40503) % GEOMETRY.vocab for i in range(GEOMETRY.drafts)]


def test_the_mocks_step_is_the_one_that_others_compute_with() -> None:
    assert STEP == 40503


def test_mock_drafts_follow_from_the_newest_row() -> None:
    session = started(Mock())
    first = make_round([Ask(1, 1, [0, 1, 2], anchor=5), Ask(2, 1, anchor=6), Ask(3, 1, [9])], seed=1)
    session.take(first)
    reply = session.draft(first)
    assert (reply.session, reply.round, reply.status) == (1, 1, Status.OK)
    assert ids_of(reply) == [mock_ids(zlib.crc32(newest_row(first, 0))), mock_ids(0), [0, 0, 0]]
    # No new rows: the newest known one still counts. Another generation starts empty.
    second = make_round([Ask(1, 1, anchor=5), Ask(3, 1, anchor=5)])
    session.take(second)
    assert ids_of(session.draft(second)) == [mock_ids(zlib.crc32(newest_row(first, i))) for i in (0, 2)]
    third = make_round([Ask(1, 2, anchor=5)])
    session.take(third)
    assert ids_of(session.draft(third)) == [mock_ids(0)]


def test_mock_fills_extra_bytes_with_its_checksum() -> None:
    session = started(Mock(), WITH_EXTRA)
    message = make_round([Ask(1, 1, [0]), Ask(2, 1, [0], anchor=6)], geometry=WITH_EXTRA)
    session.take(message)
    crc = zlib.crc32(newest_row(message, 1)).to_bytes(4, "little")
    assert session.draft(message).extra == bytes(6) + crc + crc[:2]


class Recorder(Drafter):
    """Keeps rows by position in the plainest way, and what it was called with."""

    def start(self, opening: Open) -> None:
        self.held: dict[Key, dict[int, bytes]] = {}
        self.forgotten: list[tuple[Key, int]] = []
        self.asked: list[Sequence[Wanted]] = []

    def forget(self, key: Key, position: int) -> None:
        self.forgotten.append((key, position))
        held = self.held.get(key, {})
        self.held[key] = {known: row for known, row in held.items() if known < position}

    def extend(self, batch: Sequence[Rows]) -> None:
        for rows in batch:
            held = self.held.setdefault(rows.key, {})
            assert rows.positions.tolist() == sorted(set(rows.positions.tolist()))
            assert not held or rows.positions[0] > max(held)
            for position, token, data in zip(rows.positions.tolist(), rows.tokens.tolist(), rows.data, strict=True):
                held[position] = token.to_bytes(4, "little") + data.tobytes()

    def draft(self, wanted: Sequence[Wanted]) -> Ids:
        self.asked.append(wanted)
        return np.repeat(np.array([[request.anchor] for request in wanted], dtype=np.int64), GEOMETRY.drafts, axis=1)


POSITIONS = st.lists(st.integers(0, 9), max_size=4)
ASKS = st.dictionaries(st.integers(0, 3), st.tuples(st.integers(1, 2), POSITIONS), min_size=1, max_size=4)


def apply(contexts: dict[int, tuple[int, dict[int, bytes]]], message: Round) -> None:
    """Apply the contract row by row."""
    for request in message.requests:
        generation, held = contexts.get(request.request_slot, (request.generation, {}))
        if generation != request.generation:
            held = {}
        for index in range(request.first_row, request.first_row + request.rows):
            position = message.positions[index]
            if held and position <= max(held):
                held = {known: row for known, row in held.items() if known < position}
            data = message.rows[index * message.row_bytes : (index + 1) * message.row_bytes]
            held[position] = message.tokens[index].to_bytes(4, "little") + bytes(data)
        contexts[request.request_slot] = (request.generation, held)


@settings(deadline=None)
@given(st.lists(ASKS, max_size=8))
def test_contexts_follow_the_contract_whatever_comes(rounds: list[dict[int, tuple[int, list[int]]]]) -> None:
    drafter = Recorder()
    session = started(drafter)
    contexts: dict[int, tuple[int, dict[int, bytes]]] = {}
    for number, asks in enumerate(rounds):
        message = make_round([Ask(slot, *ask, anchor=slot) for slot, ask in asks.items()], number=number, seed=number)
        session.take(message)
        assert ids_of(session.draft(message)) == [[slot] * GEOMETRY.drafts for slot in asks]
        apply(contexts, message)
        for slot, (generation, held) in contexts.items():
            assert drafter.held.get(Key(slot, generation), {}) == held


def test_who_wants_no_drafts_is_not_asked_about() -> None:
    drafter = Recorder()
    session = started(drafter)
    message = make_round([Ask(1, 1, [0]), Ask(2, 5, [0], anchor=7), Ask(3, 1, [0])])
    session.take(message)
    assert ids_of(session.draft(message)) == [[0] * 3, [7] * 3, [0] * 3]
    assert drafter.asked == [[Wanted(Key(2, 5), 7)]]
    nobody = make_round([Ask(1, 1, [1])])
    session.take(nobody)
    assert ids_of(session.draft(nobody)) == [[0] * 3]
    assert len(drafter.asked) == 1


def test_an_older_generation_is_forgotten_whole() -> None:
    drafter = Recorder()
    session = started(drafter)
    session.take(make_round([Ask(1, 8, [0, 1])]))
    session.take(make_round([Ask(1, 3)]))
    assert drafter.forgotten == [(Key(1, 8), 0)]


class Spoilt(Recorder):
    """Returns what it was given."""

    def __init__(self, ids: Any, extra: Any = None) -> None:
        self.ids = ids
        self.extra = extra

    def draft(self, wanted: Sequence[Wanted]) -> Ids:
        ids: Ids = self.ids
        return ids

    def extra_bytes(self, wanted: Sequence[Wanted]) -> bytes | None:
        extra: bytes | None = self.extra
        return extra


@pytest.mark.parametrize(
    "ids",
    [
        None,
        [[1, 2, 3]],
        np.zeros((1, 4), dtype=np.int64),
        np.zeros((2, 3), dtype=np.int64),
        np.zeros(3, dtype=np.int64),
        np.zeros((1, 3)),
        np.full((1, 3), GEOMETRY.vocab),
        np.array([[0, 1, -1]]),
        np.array([["a", "b", "c"]]),
        np.array([[1 << 63, 0, 0]], dtype=np.uint64),
    ],
)
def test_ids_that_are_not_legal_do_not_pass(ids: Any) -> None:
    message = make_round([Ask(1, 1, [0], anchor=5)])
    session = started(Spoilt(ids))
    session.take(message)
    with pytest.raises(DraftFault):
        session.draft(message)


@pytest.mark.parametrize("extra", [b"", b"1234567", "123456", 6, np.zeros(6)])
def test_extra_bytes_that_do_not_fit_do_not_pass(extra: Any) -> None:
    message = make_round([Ask(1, 1, [0], anchor=5)], geometry=WITH_EXTRA)
    session = started(Spoilt(np.zeros((1, 3), dtype=np.int64), extra), WITH_EXTRA)
    session.take(message)
    with pytest.raises(DraftFault, match="6 bytes"):
        session.draft(message)


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int64])
def test_whole_numbers_of_any_size_pass(dtype: type[Any]) -> None:
    message = make_round([Ask(1, 1, anchor=5)])
    session = started(Spoilt(np.array([[7, 8, 9]], dtype=dtype)))
    assert ids_of(session.draft(message)) == [[7, 8, 9]]


class Failing(Recorder):
    """Fails where it is told to."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _maybe(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError(where)

    def forget(self, key: Key, position: int) -> None:
        self._maybe("forget")
        super().forget(key, position)

    def extend(self, batch: Sequence[Rows]) -> None:
        self._maybe("extend")
        super().extend(batch)

    def draft(self, wanted: Sequence[Wanted]) -> Ids:
        self._maybe("draft")
        return super().draft(wanted)


@pytest.mark.parametrize(
    ("where", "call"), [("forget", Session.take), ("extend", Session.take), ("draft", Session.draft)]
)
def test_a_drafter_that_raises_is_a_fault_of_that_round_only(
    where: str, call: Callable[[Session, Round], object]
) -> None:
    drafter = Failing("")
    session = started(drafter)
    message = make_round([Ask(1, 1, [0, 1], anchor=5)])
    session.take(message)
    drafter.where = where
    with pytest.raises(DraftFault) as caught:
        call(session, message)
    assert isinstance(caught.value.__cause__, RuntimeError)
    drafter.where = ""
    # What it knew may be gone; that it takes the next rows as new ones is what counts.
    later = make_round([Ask(1, 1, [2, 3], anchor=5)])
    session.take(later)
    assert ids_of(session.draft(later)) == [[5, 5, 5]]
    assert set(drafter.held[Key(1, 1)]) >= {2, 3}


def test_after_a_failed_extend_contexts_are_empty() -> None:
    drafter = Failing("")
    session = started(drafter)
    session.take(make_round([Ask(1, 1, [0, 1]), Ask(2, 1, [0, 1])]))
    drafter.where = "extend"
    with pytest.raises(DraftFault):
        session.take(make_round([Ask(1, 1, [2])]))
    drafter.where = ""
    session.take(make_round([Ask(1, 1, [1]), Ask(2, 1, [2])]))
    assert {key.request_slot: list(held) for key, held in drafter.held.items()} == {1: [1], 2: [0, 1, 2]}


def test_an_audit_line_says_what_came_and_went() -> None:
    session = started(Mock())
    message = make_round([Ask(1, 4, [7, 9], anchor=5), Ask(2, 1)], session=0xABC, number=9)
    session.take(message)
    reply = session.draft(message)
    audit = auditing.line(message, reply)
    assert (audit.session, audit.round, audit.context_only, audit.verdict) == ("0000000000000abc", 9, False, None)
    one, other = audit.requests
    assert (one.slot, one.generation, one.first, one.rows, one.draft) == (1, 4, 7, 2, True)
    assert one.rows_crc == rows_crc(message.positions, message.tokens, message.rows)
    assert one.drafts_crc == drafts_crc(bytes(reply.ids)[:24])
    assert (other.first, other.rows, other.rows_crc, other.draft, other.drafts_crc) == (-1, 0, "00000000", False, None)
    assert auditing.line(message, None).requests[0].drafts_crc is None
