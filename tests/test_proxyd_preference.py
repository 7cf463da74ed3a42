# SPDX-License-Identifier: Apache-2.0
"""Which endpoint is moved to: without sockets and clocks."""

from __future__ import annotations

import pytest

from proxyd.links.preference import HOLD_S, MOST_HOLD_S, RELAPSE_S, Preference


A, B, C = ALL = ("a", "b", "c")


def back_after(preference: Preference, start: float) -> float:
    """Go back from B to A, which answers from ``start`` on; return how long that took."""
    now = start
    while True:
        choice = preference.choice(B, {A}, settled=True, now=now)
        if choice:
            assert choice[0] == A
            return now - start
        now += 0.5
        assert now < start + 2 * MOST_HOLD_S


@pytest.mark.parametrize(("answering", "first"), [(ALL, A), ({B, C}, B), ({C}, C), ((), A)])
def test_the_first_that_answers(answering: set[str], first: str) -> None:
    assert Preference(ALL).first(answering) == first


def test_one_that_answers_is_stayed_at() -> None:
    preference = Preference(ALL)
    assert preference.choice(A, {A, B, C}, settled=False, now=0.0) is None
    assert preference.choice(A, {B, C}, settled=True, now=1.0) is None, "it was not asked: its sessions have it"


def test_one_that_does_not_answer_is_left_for_the_next() -> None:
    preference = Preference(ALL)
    assert preference.choice(A, (), settled=False, now=0.0) is None
    choice = preference.choice(A, {C}, settled=False, now=1.0)
    assert choice
    assert choice[0] == C


def test_a_preferred_one_is_gone_back_to_only_once_it_has_answered_for_a_while() -> None:
    preference = Preference(ALL)
    assert back_after(preference, 0.0) == HOLD_S


def test_an_answer_that_fails_to_come_starts_the_while_anew() -> None:
    preference = Preference(ALL)
    assert preference.choice(B, {A}, settled=True, now=0.0) is None
    assert preference.choice(B, (), settled=True, now=HOLD_S / 2) is None
    assert back_after(preference, HOLD_S) == HOLD_S


def test_one_less_preferred_is_no_reason_to_move() -> None:
    preference = Preference(ALL)
    for now in range(10):
        assert preference.choice(B, {C}, settled=True, now=now) is None


def test_one_that_fails_again_and_again_has_to_answer_for_longer_and_longer() -> None:
    preference = Preference(ALL)
    now = 0.0
    took = []
    for _ in range(8):
        took.append(back_after(preference, now))
        now += took[-1] + RELAPSE_S / 2
        assert preference.choice(A, {B}, settled=False, now=now)
    assert took[:4] == [HOLD_S, 2 * HOLD_S, 4 * HOLD_S, 8 * HOLD_S]
    assert took[-1] == MOST_HOLD_S
    now += RELAPSE_S
    back_after(preference, now)
    now += MOST_HOLD_S + 2 * RELAPSE_S
    assert preference.choice(A, {B}, settled=False, now=now)
    assert back_after(preference, now) == HOLD_S
