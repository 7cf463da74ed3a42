# SPDX-License-Identifier: Apache-2.0
"""Host names: asked in threads of their own, one question a name, and nobody waits for one."""

from __future__ import annotations

import itertools
import socket
import threading

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from proxyd_harness import until

from proxyd.links import names as module
from proxyd.links.names import FRESH_S, LIMIT_S, MOST_ADDRESSES, MOST_ASKED, MOST_NAMES, Names, UnresolvedError


class Resolver:
    """Answers when the test says so. Times are the test's, too: nothing here depends on how fast the machine is."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[str] = []
        self._waiting: set[str] = set()
        self._answers: dict[str, Sequence[str] | OSError] = {}
        self._changed = threading.Condition()
        self._over = False
        self.names = Names(self._resolve, lambda: self.now)

    def answer(self, name: str, answer: Sequence[str] | OSError) -> None:
        """Let every question for ``name`` end with this, also later ones, and wait for those that are under way."""
        with self._changed:
            self._answers[name] = answer
            self._waiting.discard(name)
            self._changed.notify_all()
        self._settle()

    def hang(self, name: str) -> None:
        self._answers.pop(name)

    def later(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, name: str) -> Sequence[str] | str:
        """Return the addresses, or why there are none; what is asked thereby and has an answer is answered."""
        try:
            return self.names.addresses(name)
        except UnresolvedError as fault:
            return str(fault).removeprefix(f"the name {name} is not resolved: ")
        finally:
            self._settle()

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        until(lambda: not threads(), "the threads end")

    def _settle(self) -> None:
        until(lambda: len(threads()) == len(self._waiting), "every thread waits, or has ended")

    def _resolve(self, name: str) -> Sequence[str]:
        with self._changed:
            self.asked.append(name)
            if name not in self._answers:
                self._waiting.add(name)
                self._changed.wait_for(lambda: name in self._answers or self._over)
            answer = self._answers.get(name, ())
        if isinstance(answer, OSError):
            raise answer
        return answer


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "dsv41-name"]


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    made = Resolver()
    yield made
    made.close()


def test_nobody_waits_and_a_name_is_asked_for_once_at_a_time(resolver: Resolver) -> None:
    assert resolver.ask("w") == "no answer yet"
    with pytest.raises(UnresolvedError) as early:
        resolver.names.addresses("w")
    resolver.later(LIMIT_S)
    with pytest.raises(UnresolvedError, match=f"the name w is not resolved: no answer within {LIMIT_S:g} s") as late:
        resolver.names.addresses("w")
    assert (early.value.early, late.value.early) == (True, False)
    for _ in range(100):
        resolver.later(60)
        resolver.ask("w")
    assert resolver.asked == ["w"]
    assert all(each.daemon for each in threads()), "the end of the process would wait for them"
    resolver.answer("w", ["10.0.0.1"])
    assert resolver.ask("w") == ["10.0.0.1"]


def test_one_that_hangs_keeps_no_other_waiting(resolver: Resolver) -> None:
    resolver.answer("b", ["10.0.0.2"])
    resolver.ask("a")
    resolver.ask("b")
    assert resolver.ask("b") == ["10.0.0.2"]


def test_an_answer_is_kept_for_a_while_and_a_changed_one_is_followed(resolver: Resolver) -> None:
    resolver.answer("w", ["10.0.0.1"])
    resolver.ask("w")
    resolver.answer("w", ["10.0.0.2"])
    resolver.later(FRESH_S / 2)
    assert resolver.ask("w") == ["10.0.0.1"]
    assert len(resolver.asked) == 1
    resolver.later(FRESH_S)
    assert resolver.ask("w") == ["10.0.0.1"], "it is used while it is asked for"
    assert resolver.ask("w") == ["10.0.0.2"]


@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM])
def test_while_there_is_no_answer_the_last_one_holds(resolver: Resolver, number: int) -> None:
    resolver.answer("w", ["10.0.0.1"])
    resolver.ask("w")
    resolver.answer("w", socket.gaierror(number, "no server"))
    for _ in range(3):
        resolver.later(2 * FRESH_S)
        assert resolver.ask("w") == ["10.0.0.1"]
    resolver.hang("w")
    for _ in range(3):
        resolver.later(2 * FRESH_S)
        assert resolver.ask("w") == ["10.0.0.1"]


def test_a_name_that_is_no_more_has_no_address(resolver: Resolver) -> None:
    resolver.answer("w", ["10.0.0.1"])
    resolver.ask("w")
    resolver.answer("w", socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    resolver.later(2 * FRESH_S)
    resolver.ask("w")
    assert resolver.ask("w") == "Name or service not known"


def test_a_fault_is_said_and_asked_again(resolver: Resolver) -> None:
    resolver.answer("w", socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"))
    resolver.ask("w")
    assert resolver.ask("w") == "Temporary failure in name resolution"
    assert len(resolver.asked) == 1, "not at every look"
    resolver.answer("w", ["10.0.0.1"])
    resolver.later(FRESH_S)
    resolver.ask("w")
    assert resolver.ask("w") == ["10.0.0.1"]


def test_no_address_is_a_fault(resolver: Resolver) -> None:
    resolver.answer("w", [])
    resolver.ask("w")
    assert resolver.ask("w") == "it has no address"


def test_what_is_under_way_and_what_is_remembered_is_bounded(resolver: Resolver) -> None:
    for number in range(MOST_ASKED):
        assert resolver.ask(f"hangs{number}") == "no answer yet"
    assert resolver.ask("w") == f"{MOST_ASKED} other names are being asked for"
    resolver.answer("hangs0", ["10.0.0.9"])
    resolver.answer("w", ["10.0.0.1"])
    resolver.ask("w")
    assert resolver.ask("w") == ["10.0.0.1"]
    for number in range(3 * MOST_NAMES):
        resolver.answer(f"n{number}", ["10.0.0.2"])
        resolver.ask(f"n{number}")
    assert len(vars(resolver.names)["_names"]) <= MOST_NAMES
    assert len(resolver.asked) == len(set(resolver.asked)), "one that hangs was asked for again"


def test_no_thread_to_be_had_is_a_fault_that_passes(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(UnresolvedError, match="can't start new thread"):
            resolver.names.addresses("w")
    resolver.answer("w", ["10.0.0.1"])
    resolver.ask("w")
    assert resolver.ask("w") == ["10.0.0.1"]


def test_the_address_that_is_preferred_comes_first(resolver: Resolver) -> None:
    resolver.answer("w", ["10.0.0.1", "::1", "10.0.0.2"])
    resolver.ask("w")
    resolver.names.prefer("w", "::1")
    assert resolver.ask("w") == ["::1", "10.0.0.1", "10.0.0.2"]
    resolver.names.prefer("w", "10.0.0.7")
    assert resolver.ask("w") == ["10.0.0.1", "::1", "10.0.0.2"]


def test_a_name_has_so_many_addresses_and_no_more(resolver: Resolver) -> None:
    many = [f"10.0.0.{number}" for number in range(MOST_ADDRESSES + 3)]
    resolver.answer("w", many)
    resolver.ask("w")
    assert resolver.ask("w") == many[:MOST_ADDRESSES]


def test_both_families_are_asked_for_and_ipv4_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def getaddrinfo(
        host: bytes, port: None, family: int = 0, **_: Any
    ) -> list[tuple[int, int, int, str, tuple[Any, ...]]]:
        asked.append((host, port, family))
        return [
            (socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)),
            (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0)),
            (socket.AF_INET6, 1, 6, "", ("fe80::1%eth0", 0, 0, 2)),
            (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0)),
        ]  # fmt: skip

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert module.resolve("w") == ["127.0.0.1", "::1", "fe80::1%eth0"]
    assert asked == [(b"w", None, socket.AF_UNSPEC)]


@pytest.mark.parametrize("fault", [MemoryError(), ValueError("what nobody thought of")])
def test_whatever_ends_a_question_the_name_is_asked_for_again(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: Iterator[Callable[[], Sequence[str]]] = itertools.chain(
        [lambda: raising(fault)], itertools.repeat(lambda: ["::1"])
    )
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    now = 0.0
    names = Names(lambda _name: next(answers)(), lambda: now)
    for _ in range(2):
        with pytest.raises(UnresolvedError):
            names.addresses("w")
        until(lambda: not threads(), "the thread ends")
        now += 2 * FRESH_S
    assert names.addresses("w") == ["::1"]
    until(lambda: not threads(), "the thread ends")


def raising(fault: Exception) -> Sequence[str]:
    raise fault
