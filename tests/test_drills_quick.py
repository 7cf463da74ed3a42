# SPDX-License-Identifier: Apache-2.0
"""A few drills as a user runs them, on the shortest counts; `make drills` runs all of them."""

from __future__ import annotations

import io

import pytest

from rich.console import Console

from dsv41_rehearse.drills import registry
from dsv41_rehearse.drills.drill import Plan
from dsv41_rehearse.drills.runner import settled


@pytest.mark.parametrize(
    "name",
    [
        "daemon-kill",
        "daemon-stop-short",
        "session-resets",
        "drain",
        "adoption-refused",
        "worker-garbage",
        "limits",
        "endpoint-change",
    ],
)
def test_a_drill_finds_nothing_wrong(name: str) -> None:
    row = settled(registry.DRILLS[name], Plan("quick", 1, Console(file=io.StringIO())))
    if row.verdict in {"STALLED", "SKIPPED"}:
        pytest.skip(f"{row.verdict}: {row.skipped or [str(late) for late in row.late]}")
    assert row.verdict == "GOOD", row.wrong
