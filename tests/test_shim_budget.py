# SPDX-License-Identifier: Apache-2.0
"""The budget, on a clock of the test's own."""

from __future__ import annotations

import math

from engine_shim.budget import Budget


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_so_many_and_no_more() -> None:
    budget = Budget(3, 3600.0, Clock())
    assert budget.left == 3
    assert [budget.take() for _ in range(5)] == [True, True, True, False, False]
    assert (budget.left, budget.wait_s) == (0, 3600.0)


def test_each_comes_back_when_its_time_is_up() -> None:
    clock = Clock()
    budget = Budget(2, 60.0, clock)
    budget.take()
    clock.now += 20
    budget.take()
    assert budget.wait_s == 40.0
    clock.now += 39.5
    assert not budget.take()
    clock.now += 0.5
    assert (budget.left, budget.wait_s) == (1, 0.0)
    assert budget.take()
    assert budget.wait_s == 20.0, "the second one's"
    clock.now += 1000
    assert budget.left == 2


def test_a_refusal_takes_nothing() -> None:
    clock = Clock()
    budget = Budget(1, 10.0, clock)
    budget.take()
    clock.now += 9
    assert not budget.take()
    clock.now += 1
    assert budget.take()


def test_none_at_all() -> None:
    budget = Budget(0, 10.0, Clock())
    assert not budget.take()
    assert (budget.left, budget.wait_s) == (0, math.inf)
