# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup, against a search that scans everything: by construction, and on real text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st
from worker_peer import ROOT, opening

from hostflag.control import SessionGeometry
from refworker import prompt_lookup
from refworker.drafter import Key, Rows, Wanted
from refworker.history import History
from refworker.ngrams import NGrams
from refworker.prompt_lookup import PromptLookup


LONGEST: Final = 8
DRAFTS: Final = 5
KEY: Final = Key(3, 1)


def scan(known: dict[int, int], anchor: int, count: int) -> list[int]:
    """Find what History.continuation promises, the slow way: try every n-gram at every position."""
    tokens = dict(known)
    end = max(tokens, default=-1) + 1
    tokens[end] = anchor
    for n in range(LONGEST, 0, -1):
        wanted = [tokens.get(end - n + 1 + i) for i in range(n)]
        if None in wanted:
            continue
        for at in sorted(known, reverse=True):
            if [known.get(at - n + 1 + i) for i in range(n)] == wanted:
                read: list[int] = []
                for place in range(at + 1, at + 1 + count):
                    if place not in tokens:
                        break
                    read.append(tokens[place])
                    tokens[max(tokens) + 1] = tokens[place]
                return read
    return []


# Few tokens, so that n-grams come again; gaps and steps back as often as plain growth.
STEP = st.one_of(
    st.tuples(st.just("extend"), st.lists(st.integers(0, 2), min_size=1, max_size=12)),
    st.tuples(st.just("gap"), st.lists(st.integers(0, 2), min_size=1, max_size=6)),
    st.tuples(st.just("forget"), st.integers(0, 40)),
)


def advance(history: History, known: dict[int, int], step: tuple[str, object]) -> None:
    what, argument = step
    if what == "forget":
        assert isinstance(argument, int)
        history.forget(argument)
        for position in [position for position in known if position >= argument]:
            del known[position]
        return
    assert isinstance(argument, list)
    start = max(known, default=-1) + (1 if what == "extend" else 4)
    positions = range(start, start + len(argument))
    history.extend(positions, argument)
    known.update(zip(positions, argument, strict=True))


@settings(deadline=None, max_examples=400)
@given(st.lists(STEP, max_size=12), st.integers(0, 2))
def test_a_history_proposes_what_a_scan_would_find(steps: list[tuple[str, object]], anchor: int) -> None:
    history, known = History(), dict[int, int]()
    for step in steps:
        advance(history, known, step)
        assert len(history) == len(known)
        for token in (anchor, 0, 1, 2):
            assert history.continuation(token, DRAFTS) == scan(known, token, DRAFTS)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
def test_what_is_popped_leaves_nothing(kept: list[int], popped: list[int]) -> None:
    grams, other = NGrams(LONGEST), NGrams(LONGEST)
    for token in kept:
        grams.push(token)
        other.push(token)
    for token in popped:
        grams.push(token)
    for _ in popped:
        grams.pop()
    for token in popped:
        assert grams.newest(token) == other.newest(token)
    for _ in kept:
        grams.pop()
    assert not grams._ends


def test_the_index_stays_small() -> None:
    """About two entries a token of real text; eight if every n-gram were indexed at once."""
    grams = NGrams(LONGEST)
    text = text_bytes()
    for token in text:
        grams.push(token)
    assert len(grams._ends) < 2 * len(text)


@pytest.mark.parametrize(
    ("tokens", "anchor", "drafts"),
    [
        ([], 5, []),
        ([1, 2, 3], 5, []),
        ([5, 1, 2, 3], 5, [1, 2, 3, 5, 1]),  # past its end it reads on in what it proposed
        ([1, 2, 9, 8, 2, 7, 1], 2, [9, 8, 2, 7, 1]),  # two tokens beat the newer single one
        ([4, 4, 4], 4, [4, 4, 4, 4, 4]),
    ],
)
def test_a_continuation_by_example(tokens: list[int], anchor: int, drafts: list[int]) -> None:
    history = History()
    history.extend(range(len(tokens)), tokens)
    assert history.continuation(anchor, DRAFTS) == drafts


def test_a_gap_ends_a_continuation() -> None:
    history = History()
    history.extend([0, 1, 7, 8], [5, 6, 1, 2])
    assert history.continuation(5, DRAFTS) == [6]
    assert history.continuation(6, DRAFTS) == []


def started(drafts: int = DRAFTS) -> PromptLookup:
    drafter = PromptLookup()
    drafter.start(
        opening(SessionGeometry(row_bytes=8, window=1, drafts=drafts, vocab=256, max_requests=4, state_slots=8))
    )
    return drafter


def rows(start: int, tokens: Sequence[int], key: Key = KEY) -> Rows:
    n = len(tokens)
    return Rows(key, np.arange(start, start + n), np.array(tokens, dtype=np.int32), np.zeros((n, 8), dtype=np.uint8))


def text_bytes() -> bytes:
    """Real text that does not change: the licence."""
    return (ROOT / "LICENSE").read_bytes()


def test_who_is_not_known_gets_its_anchor_back() -> None:
    assert started().draft([Wanted(KEY, 7)]).tolist() == [[7] * DRAFTS]


def test_requests_do_not_see_each_other() -> None:
    drafter = started()
    other = Key(4, 1)
    drafter.extend([rows(0, [1, 2, 3]), rows(0, [1, 5, 6], other)])
    ids = drafter.draft([Wanted(other, 1), Wanted(KEY, 1)])
    assert ids[:, 0].tolist() == [5, 2]


def test_what_is_forgotten_is_not_proposed() -> None:
    drafter = started(drafts=1)
    drafter.extend([rows(0, [1, 2, 1, 3])])
    assert drafter.draft([Wanted(KEY, 1)]).tolist() == [[3]]
    drafter.forget(KEY, 2)
    assert drafter.draft([Wanted(KEY, 1)]).tolist() == [[2]]
    drafter.forget(KEY, 0)
    assert drafter.draft([Wanted(KEY, 9)]).tolist() == [[9]]
    drafter.forget(Key(7, 7), 3)  # nobody it knows


def test_a_history_that_is_too_long_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "MAX_TOKENS", 6)
    drafter = started(drafts=1)
    for start in range(0, 60, 4):
        drafter.extend([rows(start, [1, 2, 3, 4])])
        assert len(drafter._histories[KEY]) <= 8
    assert drafter.draft([Wanted(KEY, 1)]).tolist() == [[2]]


def replay(text: bytes, draft: Callable[[PromptLookup, int], Sequence[int]]) -> float:
    """Decode a text by its drafts as an engine would; return the accepted drafts a step."""
    drafter = started()
    drafter.extend([rows(0, list(text[:200]))])
    at, steps = 200, 0  # text[at] is the anchor
    while at + DRAFTS + 1 < len(text):
        ids = draft(drafter, text[at])
        accepted = next((i for i in range(DRAFTS) if ids[i] != text[at + 1 + i]), DRAFTS)
        drafter.extend([rows(at, list(text[at : at + accepted + 1]))])
        at += accepted + 1
        steps += 1
    return (at - 200 - steps) / steps


def test_real_text_is_drafted_for() -> None:
    """More than one draft a step is accepted on real text; repeating the anchor gets next to nothing."""
    text = text_bytes()
    assert replay(text, lambda drafter, anchor: drafter.draft([Wanted(KEY, anchor)])[0].tolist()) > 1.0
    assert replay(text, lambda _, anchor: [anchor] * DRAFTS) < 0.2
