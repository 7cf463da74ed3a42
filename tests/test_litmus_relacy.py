# SPDX-License-Identifier: Apache-2.0
"""
The litmus tests once more, under Relacy: a checker of C++ programs that others wrote. It knows C11's orders, not Arm.

It executes, so it sees less than the axioms allow: nothing that C11 forbids, and all but what is named here of what C11 allows.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from pathlib import Path
from typing import Final

import pytest

from memory_model import Litmus, allowed, parse
from test_litmus import TESTS, mutants
from test_memory_model import KNOWN, source_of


SOURCE: Final = Path(__file__).resolve().parent / "litmus" / "relacy.cpp"
HEADER: Final = Path("/usr/include/relacy/relacy.hpp")
ORDERS: Final = ("relaxed", "acquire", "release", "acq_rel", "seq_cst")
# C11's axioms allow it: seq_cst orders little where another access to the word is weaker. No execution of Relacy's comes to it.
NOT_SEEN: Final = {"bracket-lost 2.0.seq_cst"}


@pytest.fixture(scope="module")
def relacy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the program that runs them."""
    if (shutil.which("g++") is None or not HEADER.exists()) and "CI" not in os.environ:
        pytest.skip("not installed: g++ relacy-dev")
    program = tmp_path_factory.mktemp("relacy") / "relacy"
    subprocess.run(["g++", "-O1", "-std=gnu++11", "-w", str(SOURCE), "-o", str(program)], check=True)
    return program


def line_of(litmus: Litmus) -> str:
    """Write a test as the program reads it."""
    locations: dict[str, int] = {}
    registers: dict[tuple[int, str], int] = {}
    words = [str(len(litmus.threads))]
    for thread, body in enumerate(litmus.threads):
        for a in body:
            location = locations.setdefault(a.location, len(locations)) if a.location else 0
            result = registers.setdefault((thread, a.register), len(registers)) if a.register else 15
            first, last = (a.values[0], a.values[-1]) if a.values else (0, 0)
            orders = f"{ORDERS.index(a.orders[0])} {ORDERS.index(a.orders[-1])}"
            words.append(f"{thread} {a.op} {location} {first} {last} {orders} {result}")
    wanted = [f"{registers[thread, register]} {value}" for thread, register, value in litmus.outcome]
    return " ".join([*words, "?", *wanted])


def cases() -> dict[str, Litmus]:
    """Return every test and every mutant that C11 knows: a failed swap may not be ordered more than one that won."""
    found = {litmus.name: litmus for litmus in TESTS}
    for litmus in TESTS:
        found |= {f"{litmus.name} {what}": mutant for what, mutant in mutants(litmus)}
    unknown = {("release", "acquire"), ("relaxed", "acquire")}
    return {n: t for n, t in found.items() if not any(a.orders in unknown for body in t.threads for a in body)}


def seen(program: Path, tests: dict[str, Litmus]) -> dict[str, bool]:
    lines = "".join(f"{line_of(litmus)}\n" for litmus in tests.values())
    told = subprocess.run([str(program)], input=lines, capture_output=True, text=True, check=True, timeout=110).stdout
    return dict(zip(tests, (answer == "1" for answer in told.split()), strict=True))


def test_another_checker_comes_to_the_same(relacy: Path) -> None:
    tests = cases()
    differ = {name for name, was in seen(relacy, tests).items() if was != allowed(tests[name], "C11")}
    assert differ == NOT_SEEN


def test_another_checker_sees_nothing_that_is_known_to_be_forbidden(relacy: Path) -> None:
    tests = {name: parse(source_of(program, outcome)) for name, (program, outcome, *_) in KNOWN.items()}
    found = seen(relacy, tests)
    assert {name for name, was in found.items() if was and not KNOWN[name][2]} == set()
    assert sum(found.values()) >= 8
