# SPDX-License-Identifier: Apache-2.0
"""The bench in words and as plain values: its table, its goals, what was measured against each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from dsv41_rehearse.bench_rest import Idle, Pace
from dsv41_rehearse.samples import Spread


Spreads = Mapping[str, Mapping[str, Spread]]  # by key, by size


@dataclass(frozen=True)
class Goal:
    """A bound and what was measured; ``measured`` None: there was nothing to measure."""

    name: str
    at_most: float
    measured: float | None

    @property
    def met(self) -> bool:
        """Whether it is."""
        return self.measured is not None and self.measured <= self.at_most


def goals(spreads: Spreads, at_rest: Idle, at_pace: Pace) -> list[Goal]:
    """Return every goal with its measurement."""
    found = []
    for size in spreads["round_us"]:
        one = {name: by[size] for name, by in spreads.items()}
        found += [
            Goal(f"round / raw, p50, {size}", 1.3, _ratio(one["round_us"].p50, one["raw_us"].p50)),
            Goal(
                f"scraped / scraped elsewhere, p99, {size}",
                1.3,
                _ratio(one["round_scraped_us"].p99, one["round_scraped_elsewhere_us"].p99),
            ),
            Goal(f"own, p50 us, {size}", 10.0, one["own_us"].p50),
            Goal(f"submit, p50 us, {size}", 20.0, one["submit_us"].p50),
            Goal(f"submit, p99 us, {size}", 100.0, one["submit_us"].p99),
        ]
    return [
        *found,
        Goal("daemon at rest, one session, % of a core", 0.2, at_rest.one_session),
        Goal("each further session, % of a core", 0.1, at_rest.further_session),
        Goal("25 rounds a second, % of a core", 3.0, at_pace.cpu_percent),
    ]


def _ratio(above: float | None, below: float | None) -> float | None:
    return round(above / below, 3) if above is not None and below else None


def plain(value: Any) -> dict[str, Any]:
    """Return a dataclass as plain values; of a goal also whether it is met."""
    values = asdict(value)
    return values | {"met": value.met} if isinstance(value, Goal) else values


def show(console: Console, report: Mapping[str, Any]) -> None:
    """Print the numbers, then the goals."""
    table = Table("us, p50 / p99", *report["round_us"], box=None, padding=(0, 2, 0, 0))
    for name in (key for key in report if key.endswith("_us") and key != "block_medians_us"):
        table.add_row(name, *(_pair(spread) for spread in report[name].values()))
    console.print(table)
    pace, rest = report["pace"], report["idle"]
    console.print(
        f"at rest {rest['one_session']:.3f} % of a core, each further session {rest['further_session']:+.3f} %; "
        f"25 rounds a second {pace['cpu_percent']:.2f} %, woken {_pair(pace['wake_us'])} us after the gather",
        highlight=False,
        soft_wrap=True,
    )
    for goal in report["goals"]:
        word = "[green]met[/green]   " if goal["met"] else "[red]missed[/red]"
        console.print(
            f"{word} {goal['name']}: {goal['measured']} (at most {goal['at_most']:g})", highlight=False, soft_wrap=True
        )


def _pair(spread: Mapping[str, Any]) -> str:
    return "-" if spread["p50"] is None else f"{spread['p50']:.1f} / {spread['p99']:.1f}"
