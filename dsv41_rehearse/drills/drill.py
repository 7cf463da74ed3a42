# SPDX-License-Identifier: Apache-2.0
"""What a drill is, and what it is given to run."""

from __future__ import annotations

import random

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console

from dsv41_rehearse.drills.row import Row


Scale = Literal["quick", "full"]


@dataclass(frozen=True)
class Plan:
    """``scale``: quick counts (``make drills``) or the table's (``make soak``). ``say``: one line of progress, for what takes long."""

    scale: Scale
    seed: int
    console: Console

    def count(self, quick: int, full: int) -> int:
        """Return how often something is done."""
        return quick if self.scale == "quick" else full

    def seconds(self, quick: float, full: float) -> float:
        """Return how long something is done."""
        return quick if self.scale == "quick" else full

    def random(self) -> random.Random:
        """Return the drill's own generator, from its seed."""
        return random.Random(self.seed)

    def say(self, line: str) -> None:
        """Show progress."""
        self.console.print(f"    {line}", highlight=False, soft_wrap=True, markup=False)


@dataclass(frozen=True)
class Drill:
    """
    A fault that can be injected.

    ``name``: on the command line. ``fault``: what is done, ``bound``: what must hold, each a clause, also docs/FAULTS.md's. ``run`` returns a row and never raises
    for a bound that is not met. ``quick_s``: about how long the quick form takes.
    """

    name: str
    fault: str
    bound: str
    run: Callable[[Plan], Row]
    quick_s: float
    group: str


Drills = Sequence[Drill]
