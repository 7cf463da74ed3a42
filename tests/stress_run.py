# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: T201 - it is a command, and speaks by printing
"""
The long stress (``make stress``): millions of rounds without and with each sanitizer, then every seeded fault, the rare ones too.

``stress_run.py [--rounds N] [--seeds N] [--sanitizer NAME] [--no-faults]``. Ends with 1 where something was found that should not be,
or a seeded fault was not found.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stress_build import SANITIZERS, Builder
from stress_faults import RACES, RULES, Fault


ENVIRONMENT: Final = {
    **os.environ,
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
    # A daemon that dies leaves what its process would have taken with it. Runs where nobody dies look for leaks.
    "ASAN_OPTIONS": "detect_leaks=0",
}
LEAKS: Final = {**ENVIRONMENT, "ASAN_OPTIONS": "detect_leaks=1"}
LIVES_MS: Final = (12, 100, 1000)  # the longest life of a session: many adoptions, or many rounds between them


def run(program: Path, *arguments: str, deaths: bool = True, timeout: float = 900) -> subprocess.CompletedProcess[str]:
    """Run the stress program once, under an emulator where ``program`` needs one."""
    command = [str(program), *arguments] if deaths else [str(program), "-d", *arguments]
    environment = ENVIRONMENT if deaths else LEAKS
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, env=environment)


def finding(ended: subprocess.CompletedProcess[str]) -> str:
    """Return what a run found, in a line; empty where it found nothing."""
    if ended.returncode == 0:
        return ""
    told = [line for line in ended.stderr.splitlines() if line.startswith(("VIOLATION", "SUMMARY")) or "error:" in line]
    return told[0] if told else f"exit {ended.returncode}: {ended.stderr.strip()[-200:]}"


def look_for(builder: Builder, fault: Fault, attempts: int = 2) -> tuple[str, float]:
    """Build a faulty copy and run it; return what was found (empty: nothing) and after how many seconds."""
    program = builder.faulty(fault.name, fault.changes)
    start = time.monotonic()
    found = ""
    for seed in range(attempts):
        ended = run(program, "-s", str(seed), "-n", "1000000000", "-t", str(fault.seconds), *fault.arguments)
        found = finding(ended)
        if found:
            break
    program.unlink()
    return found, time.monotonic() - start


def soak(builder: Builder, program: Path, rounds: int, seeds: int) -> bool:
    """Run so many rounds in all; say what they were; True where nothing was found."""
    total: dict[str, float] = {}
    for seed in range(seeds):
        life = LIVES_MS[seed % len(LIVES_MS)]
        ended = run(program, "-n", str(rounds // seeds), "-s", str(seed), "-l", str(life), timeout=7200)
        found = finding(ended)
        if found:
            print(f"{builder.sanitizer}: seed {seed}, -l {life}: {found}\n{ended.stderr}", flush=True)
            return False
        for name, value in json.loads(ended.stdout).items():
            total[name] = max(total.get(name, 0), value) if name.startswith("most") else total.get(name, 0) + value
    told = ", ".join(f"{name} {value:,.0f}" for name, value in total.items())
    print(f"{builder.sanitizer}: seeds 0 to {seeds - 1}: {told}", flush=True)
    return True


def find_all(builder: Builder, faults: Sequence[Fault]) -> bool:
    """Look for every seeded fault; say who was found and when."""
    sound = True
    for fault in faults:
        found, seconds = look_for(builder, fault)
        print(f"{fault.name}: {found or 'NOT FOUND'} ({seconds:.1f} s)", flush=True)
        sound &= bool(found)
    return sound


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000_000, help="for each sanitizer, twice as many without one")
    parser.add_argument("--seeds", type=int, default=9, help="the rounds are shared between so many seeds")
    parser.add_argument("--sanitizer", choices=tuple(SANITIZERS), help="only this one")
    parser.add_argument("--no-faults", action="store_true", help="do not look for seeded faults")
    asked = parser.parse_args(argv)
    sound = True
    for sanitizer in [asked.sanitizer] if asked.sanitizer else SANITIZERS:
        with tempfile.TemporaryDirectory(prefix="dsv41-stress") as directory:
            builder = Builder(Path(directory), sanitizer)
            reason = builder.works()
            if reason:
                print(f"{sanitizer}: {reason}: not run")
                sound = False
                continue
            program = builder.program()
            sound &= soak(builder, program, asked.rounds * (2 if sanitizer == "none" else 1), asked.seeds)
            if not asked.no_faults:
                sound &= find_all(builder, {"none": RULES, "thread": RACES}.get(sanitizer, ()))
    print("nothing was found but what was seeded" if sound else "SOMETHING IS WRONG")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
