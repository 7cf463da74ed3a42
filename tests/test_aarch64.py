# SPDX-License-Identifier: Apache-2.0
"""
The native tests, built for 64-bit Arm and run under user-mode emulation.

This proves build and function on another architecture. It proves nothing of order: the emulator runs on this machine's cores, which
keep more in order than Arm's do. That is what tests/litmus and the instructions below are for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

from pathlib import Path
from typing import Final

import pytest

from stress_build import NATIVE, Builder

from hostflag._hostflag import lib


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # compilers and sanitizers on a busy machine
COMPILER: Final = "aarch64-linux-gnu-gcc"
EMULATOR: Final = "qemu-aarch64-static"

# What gcc makes of the orders that docs/ORDERING.md argues: each function's own ordering instructions, in the order of the source.
RAISE: Final = "ldaxr stlxr"
COUNT: Final = "ldxr stxr"  # relaxed: a fence beside it orders
INSTRUCTIONS: Final = {
    "hostflag.c": {
        "hf_decide": RAISE,
        "hf_verdict_load": "ldar",
        "hf_release": f"ldar {RAISE} dmb",
        "hf_released_wait": f"{COUNT} dmb ldar {COUNT}",
        "hf_doorbell_ring": "stlr dmb",
        "hf_doorbell_wait": "dmb ldar",
    },
    "softthread.c": {"run": "stlr", "run_wait": "ldar", "finish_one": "stlr stlr dmb", "rest": "dmb"},
    "softstream.c": {"enqueue": "ldar stlr", "hfs_ring": "dmb", "hfs_await": f"{COUNT} dmb ldar ldar {COUNT}"},
    "submit.c": {
        "write_slot": "stlr",
        "free_slots": "ldar",
        "plan_step": "ldar",
        "refusal": "ldar ldar ldar",
        "hfe_submit": "stlr stlr",
    },
    "engine.c": {"hfe_give_up": f"ldxr stxr {RAISE} stlr"},
    "watchdog.c": {
        "hfe_watchdog_wake": "dmb stlr ldxr stxr",
        "hfe_watchdog_ready": "ldar",
        "finished": "ldar ldar",
        "watch": "dmb stlr",
    },
    "watch.c": {"look_at_rounds": "ldar ldar", "book_time": "stlr"},
    "round.c": {"gathered": "ldar", "finish": "stlr", "hfd_round_drain": "ldar"},
    "roundloop.c": {"run": "ldar", "take_commands": "ldar", "take_link": "ldaxr stxr", "hfd_loop_main": "stlr"},
    "eventring.c": {"hfd_events_room": "ldar", "hfd_events_put": "stlr", "hfd_events_take": "ldar stlr"},
    "region.c": {"hf_word_load": "ldar"},
}
ORDERING: Final = re.compile(r"(ldar|stlr|ldaxr|stlxr|ldxr|stxr|dmb)$")


def required(*programs: str) -> None:
    """Skip where one is not installed; in CI that is a failure."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing and "CI" not in os.environ:
        pytest.skip(
            f"not installed: {', '.join(missing)} (gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)"
        )
    assert not missing


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    required(COMPILER, EMULATOR)
    return Builder(tmp_path_factory.mktemp("aarch64"), compiler=COMPILER, extra=("-static",))


def emulated(program: Path, *arguments: str) -> str:
    ended = subprocess.run([EMULATOR, program, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert ended.stderr == ""
    assert ended.returncode == 0
    return ended.stdout


def test_layout_words_and_decoders(builder: Builder) -> None:
    """The layout is the same one, so an engine and a daemon of different architectures would agree on every offset."""
    assert emulated(builder.plain("native_smoke"), "3").strip() == f"{lib.hf_layout_hash():016x}"


def test_a_session_under_load(builder: Builder) -> None:
    result = json.loads(emulated(builder.plain("engine_stress"), "600", "1"))
    assert result["faults"] == 0
    assert min(result["ok"], result["rows"]) > 0


def test_sessions_change(builder: Builder) -> None:
    result = json.loads(emulated(builder.plain("engine_adopt"), "15", "0"))
    assert result["faults"] == 0
    assert min(result["ok"], result["lost"]) > 0


def test_the_words_under_stress(builder: Builder) -> None:
    counts = json.loads(emulated(builder.program(), "-n", "1200", "-l", "8", "-s", "4"))
    assert min(counts[name] for name in ("ok", "context_only", "adoptions", "kills", "wraps")) > 0


def orders_of(source: str, directory: Path, *flags: str) -> dict[str, list[str]]:
    """Return the ordering instructions of each function, as gcc writes them for a core without the atomic extension."""
    target = directory / "listed.o"
    command = [COMPILER, "-std=gnu11", "-D_GNU_SOURCE", "-mno-outline-atomics", *flags, f"-I{NATIVE}"]
    subprocess.run([*command, "-c", str(NATIVE / source), "-o", str(target)], check=True)
    dump = [COMPILER.replace("gcc", "objdump"), "-d", "--no-show-raw-insn", str(target)]
    functions: dict[str, list[str]] = {}
    for line in subprocess.run(dump, capture_output=True, text=True, check=True).stdout.splitlines():
        if begun := re.match(r"[0-9a-f]+ <([^>.]+)", line):
            orders = functions.setdefault(begun[1], [])
        elif (found := re.match(r"\s+[0-9a-f]+:\s+(\S+)", line)) and ORDERING.match(found[1]):
            assert found[1] != "dmb" or line.split()[-1] == "ish"
            orders.append(found[1])
    return functions


@pytest.mark.parametrize("source", INSTRUCTIONS)
def test_the_orders_are_instructions(source: str, tmp_path: Path) -> None:
    """Without inlining, so that each function has its own; nothing of them is lost where the optimizer is let go."""
    required(COMPILER)
    plain = orders_of(source, tmp_path, "-O1", "-fno-inline", "-fno-reorder-blocks")
    assert {name: " ".join(plain[name]) for name in INSTRUCTIONS[source]} == INSTRUCTIONS[source]
    shipped = set().union(*orders_of(source, tmp_path, "-O2").values())
    assert shipped >= {order for name in INSTRUCTIONS[source] for order in plain[name]}
