# SPDX-License-Identifier: Apache-2.0
"""The command line of ``dsv41-rehearse drill``."""

from __future__ import annotations

import argparse

from pathlib import Path

from dsv41_rehearse.drills import registry
from dsv41_rehearse.ranges import within


def add(command: argparse.ArgumentParser) -> None:
    """Add options and the list of drills."""
    width = max(map(len, registry.DRILLS))
    listed = "\n".join(f"  {name:<{width}}  {drill.fault}" for name, drill in registry.DRILLS.items())
    command.epilog = f"drills, each with its bound in docs/FAULTS.md:\n{listed}\n\nexit status: 1 where one is WRONG, 3 where one stays STALLED (the machine stood still: it shows nothing)\n"
    option = command.add_argument
    option(
        "names",
        nargs="+",
        choices=(registry.ALL, *registry.DRILLS),
        metavar="NAME",
        help="drills from the list below, or all",
    )
    option(
        "--full",
        action="store_true",
        help="the contract's counts instead of small ones: takes hours where it is all of them",
    )
    option(
        "--repeat",
        type=within(int, 1, 100_000),
        default=1,
        metavar="N",
        help="each so often, with a seed of its own (1)",
    )
    option("--json", type=Path, metavar="FILE", help="write everything that was found, drill by drill")
    option(
        "--seed",
        type=within(int, 0, (1 << 62) - 1),
        default=1,
        metavar="N",
        help="of row bytes, pauses and choices (1)",
    )
