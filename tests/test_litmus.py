# SPDX-License-Identifier: Apache-2.0
"""
Order, where no test on this machine can show it: each pair of docs/ORDERING.md as a litmus test, checked by tests/memory_model.py.

What is forbidden is forbidden under C11 and on Arm; with any one of its orders weaker, or its fence gone, it is allowed. Each access names
the function of native/ that it stands for, which must have it with these very orders.
"""

from __future__ import annotations

import re

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from memory_model import MODELS, Access, Litmus, allowed, parse
from test_ordering import named_in_the_document


ROOT: Final = Path(__file__).resolve().parent.parent
NATIVE: Final = ROOT / "native"
TESTS: Final = [parse(path.read_text("utf-8")) for path in sorted((ROOT / "tests" / "litmus").glob("*.litmus"))]
FORBIDDEN: Final = [litmus for litmus in TESTS if ": forbidden." in litmus.about]
# One location: its own coherence is enough, whatever the orders.
COHERENCE: Final = {"verdict-once", "beat"}


def named(litmus: Litmus) -> str:
    return litmus.name


def weaker(access: Access) -> Iterator[tuple[str, tuple[Access, ...]]]:
    """Yield an access with one order less, and what that is called; a fence not at all."""
    order, *failure = access.orders
    if access.op == "thread_fence":
        yield "fence", ()
    elif order == "seq_cst":
        plain = {"load": "acquire", "store": "release"}.get(access.op, "acq_rel")
        yield "seq_cst", (replace(access, orders=(plain, *failure)),)
    elif order == "acq_rel":
        yield "release", (replace(access, orders=("acquire", *failure)),)
        yield "acquire", (replace(access, orders=("release", *failure)),)
    elif order != "relaxed":
        yield order, (replace(access, orders=("relaxed", *failure)),)
    if failure and failure[0] != "relaxed":
        yield "failure", (replace(access, orders=(order, "relaxed")),)


def mutants(litmus: Litmus) -> Iterator[tuple[str, Litmus]]:
    """Yield the test with one order less, and what that is called."""
    for t, body in enumerate(litmus.threads):
        for i, access in enumerate(body):
            for what, new in weaker(access):
                yield f"{t}.{i}.{what}", litmus.with_access(t, i, *new)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("litmus", FORBIDDEN, ids=named)
def test_what_must_not_be_cannot_be(litmus: Litmus, model: str) -> None:
    assert not allowed(litmus, model)


@pytest.mark.parametrize("litmus", [litmus for litmus in FORBIDDEN if litmus.name not in COHERENCE], ids=named)
def test_no_order_is_there_for_nothing(litmus: Litmus) -> None:
    """
    But for those that the test's comment calls spare: another pair needs them, or one of two is enough.

    C11 has no cycle of reads before writes, whatever the orders are; Arm has. So one of the two must show it.
    """
    idle = [what for what, mutant in mutants(litmus) if not any(allowed(mutant, model) for model in MODELS)]
    assert idle == litmus.about.partition("spare:")[2].split()


@pytest.mark.parametrize("litmus", FORBIDDEN, ids=named)
def test_without_its_orders_arm_allows_it(litmus: Litmus) -> None:
    bare = [
        tuple(replace(a, orders=("relaxed",) * 2) for a in body if a.op != "thread_fence") for body in litmus.threads
    ]
    assert allowed(replace(litmus, threads=tuple(bare)), "AArch64") is (litmus.name not in COHERENCE)


def test_a_verdict_that_is_stored_and_not_swapped_can_be_two() -> None:
    once = next(litmus for litmus in TESTS if litmus.name == "verdict-once")
    for t in (0, 1):
        swap = once.threads[t][0]
        load = Access("load", "verdict", (), ("acquire",), swap.register)
        store = Access("store", "verdict", swap.values[1:], ("release",), "")
        once = once.with_access(t, 0, load, store)
    both = replace(once, outcome=((0, "r0", 0), (1, "r1", 0)))  # both found it open
    assert all(allowed(both, model) for model in MODELS)


def test_what_is_not_relied_on_can_be() -> None:
    others = [litmus for litmus in TESTS if litmus not in FORBIDDEN]
    assert [litmus.name for litmus in others] == ["lost-word"]
    assert all(allowed(litmus, model) for litmus in others for model in MODELS)


def test_every_pair_of_the_document_has_its_litmus_test() -> None:
    tested = {name for litmus in TESTS for name in re.findall(r'"([^"]+)":', litmus.about)}
    assert tested == set(named_in_the_document())


def body_of(file: str, function: str) -> str:
    text = (NATIVE / file).read_text(encoding="utf-8")
    found = re.search(rf"^[^\n;]*\b{function}\([^;{{]*\)\n\{{\n(.*?)^\}}", text, re.MULTILINE | re.DOTALL)
    assert found, f"{file} has no function {function}"
    return found[1]


def calls(body: str, op: str) -> Iterator[str]:
    """Yield the arguments of each call of an atomic operation."""
    for found in re.finditer(rf"atomic_{op}\(", body):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(body[end], 0)
            end += 1
        yield body[found.end() : end - 1]


@pytest.mark.parametrize("litmus", TESTS, ids=named)
def test_the_code_has_these_orders(litmus: Litmus) -> None:
    for access in (access for body in litmus.threads for access in body if access.place):
        file, function, *word = access.place.split()
        op = {
            "thread_fence": "thread_fence",
            "compare_exchange_strong": "compare_exchange_(?:strong|weak)_explicit",
        }.get(access.op, f"{access.op}_explicit")
        wanted = [f"memory_order_{order}" for order in access.orders]
        for arguments in calls(body_of(file, function), op):
            if (not word or word[0] in arguments) and re.findall(r"memory_order_\w+", arguments)[
                -len(wanted) :
            ] == wanted:
                break
        else:
            pytest.fail(f"{access.place}: no {access.op} with {access.orders}")
