# SPDX-License-Identifier: Apache-2.0
"""A daemon's own account: its counters, as its /metrics page has them."""

from __future__ import annotations

import urllib.request

from collections.abc import Mapping
from typing import Final

from dsv41_rehearse.stack import Child


PREFIX: Final = "dsv41_proxyd_"
_PATIENCE_S: Final = 10.0


def counters(daemon: Child) -> dict[str, float]:
    """Return every sample of its page by name and labels, the prefix left out: ``rounds_total{verdict="ok"}``. Raises OSError."""
    with urllib.request.urlopen(daemon.ready()["metrics"], timeout=_PATIENCE_S) as response:  # noqa: S310 the daemon said it
        lines = response.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if line.startswith(PREFIX))
    return {name.removeprefix(PREFIX): float(value) for name, _, value in samples}


def grown(before: Mapping[str, float], after: Mapping[str, float], name: str) -> int:
    """Return by how much a counter grew."""
    return round(after.get(name, 0.0) - before.get(name, 0.0))


def rounds(verdict: str) -> str:
    """Return the name of the counter of rounds with this verdict."""
    return f'rounds_total{{verdict="{verdict}"}}'


def dropped(reason: str) -> str:
    """Return the name of the counter of workers' messages that were dropped for this reason."""
    return f'worker_dropped_total{{reason="{reason}"}}'
