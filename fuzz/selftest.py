# SPDX-License-Identifier: Apache-2.0
"""``python -m fuzz.selftest [--seconds N] [WORD ...]``: seeds one bug at a time into a copy; each must be found within that time."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from fuzz.bugs import BUGS, Bug
from fuzz.build import build, product_sources
from fuzz.campaign import INPUT_LIMITS
from fuzz.targets import CORPUS, FUZZ, IN_C, PRODUCT_FOLDERS, ROOT


START_S: Final = 120  # for a compiler, or Python's imports, on a busy machine


class NotSeeded(Exception):
    """The source has changed, and the bug has no place in it any more: change fuzz/bugs.py too."""


def seeded(bug: Bug, folder: Path) -> Path:
    """Return ``folder`` with a copy of the product that has the bug. Raises NotSeeded."""
    for name in PRODUCT_FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "_*.c"))
    if bug.target not in IN_C:
        shutil.copytree(FUZZ, folder / FUZZ.name, ignore=shutil.ignore_patterns("__pycache__", "corpus", "found"))
    place = folder / bug.file
    text = place.read_text(encoding="utf-8")
    if text.count(bug.before) != 1:
        raise NotSeeded(f"{bug.file} has {text.count(bug.before)} times, not once: {bug.before}")
    place.write_text(text.replace(bug.before, bug.after), encoding="utf-8")
    return folder


def found_after(bug: Bug, seconds: int) -> float | None:
    """Return how many seconds it took to find the bug from the seeds alone, or None."""
    with tempfile.TemporaryDirectory(prefix="dsv41-fuzz-") as scratch:
        folder = seeded(bug, Path(scratch))
        command, began = _command(bug, folder), time.monotonic()
        grown = folder / "grown"
        grown.mkdir()
        flags = [f"-max_total_time={seconds}", f"-max_len={bug.target.most_bytes}", "-len_control=20", *INPUT_LIMITS]
        ended = subprocess.run(
            [*command, *flags, f"-artifact_prefix={folder}/", str(grown), str(CORPUS / bug.target.name)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            timeout=seconds + START_S,
            check=False,
        )
        return time.monotonic() - began if ended.returncode and list(folder.glob("*-*")) else None


def _command(bug: Bug, folder: Path) -> list[str]:
    if bug.target not in IN_C:
        return [sys.executable, "-m", "fuzz.drive", bug.target.name]
    copies = [folder / "native" / path.name for path in product_sources()]
    return [str(build(bug.target, folder / "build", copies))]


def _try(bug: Bug, seconds: int) -> bool:
    try:
        after = found_after(bug, seconds)
    except (NotSeeded, subprocess.SubprocessError) as fault:
        print(f"{bug.target.name:9} without a check of {bug.name}: NOT TRIED: {str(fault)[:200]}", flush=True)
        return False
    said = "NOT FOUND" if after is None else f"found after {after:.1f} s"
    print(f"{bug.target.name:9} without a check of {bug.name}: {said}", flush=True)
    return after is not None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.selftest", description=__doc__)
    parser.add_argument("word", nargs="*", help="only bugs whose target or name has such a word (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each (default: 60)")
    arguments = parser.parse_args(argv)
    chosen = [
        bug
        for bug in BUGS
        if not arguments.word or any(word in f"{bug.target.name} {bug.name}" for word in arguments.word)
    ]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda bug: _try(bug, arguments.seconds), chosen))
    print(f"{sum(found)} of {len(chosen)} seeded bugs found")
    return 0 if chosen and all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
