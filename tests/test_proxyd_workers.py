# SPDX-License-Identifier: Apache-2.0
"""When other endpoints are looked at: without sockets, and whatever the clock says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from proxyd_clock import Clock

from proxyd.links import workers as module
from proxyd.links.workers import ANSWER_S, UP_S, Workers


class Session:
    settled = False

    def move(self) -> None: ...


class Asked:
    """A probe, with what it does when it is asked."""

    def __init__(self, endpoint: str, answer: Callable[[], bool]) -> None:
        self.endpoint = endpoint
        self.answered = answer

    def close(self) -> None: ...


class Asking:
    """In the place of Links: what asking each endpoint does. Where one has nothing here, it cannot even be asked."""

    def __init__(self, **answers: Callable[[], bool]) -> None:
        self.endpoint = "a"
        self._answers = answers

    def check(self, endpoint: str) -> None: ...

    def probe(self, endpoint: str, _on_barred: Callable[[str, str], None]) -> Asked:
        if endpoint not in self._answers:
            raise RuntimeError("what nobody thought of")
        return Asked(endpoint, self._answers[endpoint])


def failing() -> bool:
    raise RuntimeError("what nobody thought of")


def asking(clock: Clock, endpoints: Sequence[str], **answers: Callable[[], bool]) -> Workers:
    events: Any = clock
    links: Any = Asking(**answers)
    workers = Workers(events, links, endpoints)
    workers._log = SimpleNamespace(warning=silent, error=silent)  # tracebacks take seconds to draw
    return workers


def silent(*_: Any, **__: Any) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: made.now))  # and nobody else's
    return made


@pytest.fixture
def workers(clock: Clock) -> Workers:
    events: Any = clock
    links: Any = None
    return Workers(events, links, ["ipc:///a", "ipc:///b"])


def test_sessions_that_come_put_no_look_off(workers: Workers, clock: Clock) -> None:
    for number in range(20):
        clock.now = number * UP_S / 20
        workers.follow(Session())
        assert clock.due() == [UP_S]


def test_a_session_that_loses_its_worker_has_the_others_looked_at_at_once(workers: Workers, clock: Clock) -> None:
    workers.follow(Session())
    clock.now = UP_S / 2
    workers.trouble()
    assert clock.due() == [UP_S / 2]
    workers.follow(Session())
    assert clock.due() == [UP_S / 2]


@pytest.mark.parametrize("answers", [{}, {"a": failing}], ids=["cannot be asked", "fails"])
def test_an_endpoint_whose_probe_fails_is_moved_away_from(clock: Clock, answers: dict[str, Callable[[], bool]]) -> None:
    workers = asking(clock, ["a", "b"], **answers, b=lambda: True)
    workers.follow(Session())
    clock.pass_time(UP_S + 2 * ANSWER_S)
    assert workers.endpoint == "b"


@pytest.mark.parametrize("answers", [{}, {"a": failing, "b": failing}], ids=["cannot be asked", "fails"])
def test_looks_go_on_and_a_switch_is_decided_where_every_probe_fails(
    clock: Clock, answers: dict[str, Callable[[], bool]]
) -> None:
    workers = asking(clock, ["a", "b"], **answers)
    workers.follow(Session())
    decided: list[str] = []
    workers.switch(["b", "a"], lambda: decided.append(workers.endpoint), "asked for")
    clock.pass_time(2 * ANSWER_S)
    assert decided == ["b"]
    for _ in range(3):
        clock.pass_time(1.0)
        assert len(clock.due()) == 1


def test_a_look_that_cannot_be_begun_has_an_end(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = asking(clock, ["a", "b"], a=lambda: False, b=lambda: True)
    workers.follow(Session())
    with monkeypatch.context() as patch:
        patch.setattr(Workers, "settled", property(lambda _: failing()))
        with pytest.raises(RuntimeError):
            clock.pass_time(UP_S)
        assert len(clock.due()) == 1
    clock.pass_time(2.0)
    assert workers.endpoint == "b"


def test_a_probe_that_cannot_be_closed_ends_no_looks(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = asking(clock, ["a", "b"], a=lambda: True, b=lambda: True)
    workers.follow(Session())
    with monkeypatch.context() as patch:
        patch.setattr(Asked, "close", lambda _: failing())
        for _ in range(2):  # one for each probe
            with pytest.raises(RuntimeError):
                clock.pass_time(UP_S)
    clock.pass_time(2.0)
    assert len(clock.due()) == 1
