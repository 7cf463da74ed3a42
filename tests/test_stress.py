# SPDX-License-Identifier: Apache-2.0
"""
The words under stress, briefly: engine, watchdog and round loop race on one map while daemons die and regions are adopted.

Nothing is found in the product; everything is found in copies with a seeded fault. ``make stress`` runs millions of rounds.
"""

from __future__ import annotations

import json
import os

from collections.abc import Callable
from pathlib import Path

import pytest

from stress_build import NATIVE, SANITIZERS, Builder, Change
from stress_faults import RACES, RULES, Fault
from stress_run import finding, look_for, run


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # compilers and sanitizers on a busy machine
Built = tuple[Builder, Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    """Return a function that gives the builder and the program of a sanitizer, made when first asked for."""
    made: dict[str, Built] = {}

    def give(sanitizer: str) -> Built:
        if sanitizer not in made:
            builder = Builder(tmp_path_factory.mktemp("stress"), sanitizer)
            reason = builder.works()
            if reason and "CI" not in os.environ:
                pytest.skip(reason)
            assert not reason
            made[sanitizer] = builder, builder.program()
        return made[sanitizer]

    return give


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_nothing_is_found_while_daemons_die(build: Callable[[str], Built], sanitizer: str) -> None:
    ended = run(build(sanitizer)[1], "-n", "2000", "-s", "1", "-l", "8", timeout=300)
    assert finding(ended) == ""
    counts = json.loads(ended.stdout)
    happened = ("ok", "expired", "lost", "context_only", "rows", "adoptions", "kills", "stopped", "wraps")
    assert [name for name in happened if counts[name] == 0] == []


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_nothing_is_found_while_nobody_dies(build: Callable[[str], Built], sanitizer: str) -> None:
    """Leaks are looked for, too."""
    ended = run(build(sanitizer)[1], "-n", "3000", deaths=False, timeout=300)
    assert finding(ended) == ""
    assert json.loads(ended.stdout)["ok"] > 0


@pytest.mark.parametrize("fault", RACES, ids=lambda fault: fault.name)
def test_the_thread_sanitizer_finds_a_seeded_race(build: Callable[[str], Built], fault: Fault) -> None:
    found, _ = look_for(build("thread")[0], fault)
    assert "data race" in found


@pytest.mark.parametrize("fault", [fault for fault in RULES if not fault.long], ids=lambda fault: fault.name)
def test_a_broken_rule_is_found(build: Callable[[str], Built], fault: Fault) -> None:
    found, _ = look_for(build("none")[0], fault)
    assert found.startswith("VIOLATION")


def test_with_a_map_each_the_thread_sanitizer_is_blind(build: Callable[[str], Built]) -> None:
    """It keeps its books by address. So the stress is run on one map, and the program refuses to be fooled there."""
    race = next(fault for fault in RACES if fault.name == "header-submitted")
    builder = build("thread")[0]
    program = builder.faulty("two-maps", race.changes)
    assert finding(run(program, "-n", "1500", "-d", "-m", "2", timeout=300)) == ""
    assert "data race" in finding(run(program, "-n", "1000000", "-d", "-m", "1", timeout=300))


@pytest.mark.parametrize("fault", [fault for fault in RULES if fault.long], ids=lambda fault: fault.name)
def test_a_rare_fault_can_still_be_seeded(fault: Fault) -> None:
    """``make stress`` looks for it."""
    for change in fault.changes:
        text = (NATIVE / change.file).read_text(encoding="utf-8")
        assert change.applied_to(text) != text


@pytest.mark.parametrize("seed", range(3))
def test_decoders_and_words_of_the_c_code_alone(build: Callable[[str], Built], seed: int) -> None:
    """Bytes that make no sense, where a sanitizer sees the first one that is read outside."""
    program = build("address,undefined")[0].plain("native_smoke")
    assert finding(run(program, str(seed), timeout=300)) == ""


def test_a_byte_that_is_read_outside_is_found(build: Callable[[str], Built]) -> None:
    unchecked = Change("roundwire.c", "    if (bytes < sizeof(reply))\n        return HFD_REPLY_BAD;\n", "")
    program = build("address,undefined")[0].plain("native_smoke", unchecked)
    ended = run(program, "1", timeout=300)
    assert "heap-buffer-overflow" in ended.stderr
    assert "hfd_wire_check_reply" in ended.stderr
