# SPDX-License-Identifier: Apache-2.0
"""Every drill there is, in the order in which the contract's faults are told."""

from __future__ import annotations

import importlib

from typing import Final

from dsv41_rehearse.drills.drill import Drill, Drills


ALL: Final = "all"
# Each has DRILLS; one a line.
_MODULES: Final = (
    "killed",
    "stopped",
    "paused",
    "idle",
    "workers",
    "hanging",
    "garbage",
    "engines",
    "adoption",
    "door",
    "budget",
    "limits",
    "cut",
    "slow",
    "flood",
    "submits",
    "forked",
    "closing",
    "resets",
    "restarts",
    "soak",
    "misbehaving",
    "cores",
    "starved",
)
_ORDER: Final = (
    "daemon-kill", "daemon-stop", "engine-stop", "daemon-stop-short", "both-stop", "freeze-daemon", "freeze-engine", "freeze-both",
    "idle", "worker-kill", "worker-hang", "worker-garbage", "network-cut", "slow-daemon", "engine-kill", "session-resets",
    "daemon-restarts", "adoption-refused", "limits", "handshake-door", "budget-spent", "drain", "endpoint-change", "shim-close", "soak",
    "daemon-closes", "hello-queued", "core-dump", "submit-fails", "watchdog-stalled", "cpu-quota", "forked-child", "flood",
)  # fmt: skip


def _groups() -> list[Drills]:
    return [importlib.import_module(f"dsv41_rehearse.drills.{name}").DRILLS for name in _MODULES]


def _registered() -> dict[str, Drill]:
    drills = [drill for group in _groups() for drill in group]
    order = {name: place for place, name in enumerate(_ORDER)}
    # One whose name is not in the order yet comes last: it is run all the same.
    drills.sort(key=lambda drill: order.get(drill.name, len(order)))
    return {drill.name: drill for drill in drills}


DRILLS: Final = _registered()


def duplicates() -> list[str]:
    """Return the names that more than one drill has: all but one of them would never run."""
    names = [drill.name for group in _groups() for drill in group]
    return sorted({name for name in names if names.count(name) > 1})


def missing() -> list[str]:
    """Return the names of the order that no drill has, and of drills that the order lacks."""
    return sorted(set(_ORDER) ^ set(DRILLS))


def chosen(names: list[str]) -> list[Drill]:
    """Return the drills of these names, in the registry's order; ``all``: every one. Raises KeyError for a name that is none."""
    unknown = [name for name in names if name != ALL and name not in DRILLS]
    if unknown:
        raise KeyError(unknown[0])
    return [drill for name, drill in DRILLS.items() if ALL in names or name in names]
