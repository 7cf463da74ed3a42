# SPDX-License-Identifier: Apache-2.0
"""``python -m fuzz [--seconds N] [TARGET ...]``: runs fuzzers, two at a time. See README.md."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from fuzz.build import CannotBuild, build
from fuzz.campaign import Campaign, Outcome, command_of
from fuzz.targets import BUILD, BY_NAME, IN_C, TARGETS, Target


AT_ONCE: Final = 2
ATHERIS: Final = "no atheris here, which fuzzes Python: pip install --group fuzz (there are wheels for Linux on x86-64, for Python 3.11 and newer)"


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 where nothing was found and everything could run; 1 else. Outside CI what cannot run here is passed over."""
    arguments = _parser().parse_args(argv)
    if unknown := set(arguments.target) - BY_NAME.keys():
        print(f"no such fuzzer: {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}", file=sys.stderr)
        return 2
    chosen = [BY_NAME[name] for name in arguments.target] or list(TARGETS)
    ready = [target for target in chosen if _prepared(target)]
    missing = len(chosen) - len(ready)
    campaign = Campaign(arguments.seconds, arguments.keep, arguments.found)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        outcomes = list(pool.map(campaign.run, ready))
    for outcome in outcomes:
        print(outcome.line())
    bad = [outcome for outcome in outcomes if not outcome.clean]
    for outcome in bad:
        print(_story(outcome), file=sys.stderr)
    return 1 if bad or (missing and "CI" in os.environ) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzzes every decoder; see fuzz/README.md.")
    parser.add_argument("target", nargs="*", help="which (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="for each (default: 60)")
    parser.add_argument(
        "--at-once", type=int, default=AT_ONCE, help=f"how many run at the same time (default: {AT_ONCE})"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        default=None,
        help="a folder that keeps the inputs that brought something new (default: nowhere)",
    )
    parser.add_argument("--found", type=Path, default=BUILD / "found", help="where inputs that fail are written")
    return parser


def _prepared(target: Target) -> bool:
    """Build it, or see that it can run; say what is missing."""
    missing: object = None
    try:
        if target in IN_C:
            build(target, BUILD)
        elif importlib.util.find_spec("atheris") is None:
            missing = ATHERIS
    except CannotBuild as fault:
        missing = fault
    except subprocess.CalledProcessError as fault:
        sys.exit(f"{target.name}: does not build: {fault}")
    if missing:
        print(f"{target.name}: not run: {missing}", file=sys.stderr)
    return missing is None


def _story(outcome: Outcome) -> str:
    again = "".join(f"\n  {' '.join(command_of(outcome.target))} {path}" for path in outcome.inputs)
    return f"== {outcome.target.name}\n{outcome.tail}\nreproduce:{again or ' ' + outcome.command}"


if __name__ == "__main__":
    sys.exit(main())
