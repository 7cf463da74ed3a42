# SPDX-License-Identifier: Apache-2.0
"""The minimal program deadlocks.c, run once a case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.gpu.bare.build import BareError, once


PROGRAM: Final = Path(__file__).resolve().parent / "deadlocks.c"
CALLS: Final = ("first-launch", "runtime-launch", "module-load", "memory-free", "sync-copy", "unregister")
HELPERS: Final = ("cuda", "self", "free", "process")
EAGER: Final = {"CUDA_MODULE_LOADING": "EAGER"}
PATIENCE_S: Final = 30.0  # the program's own monitor ends it long before


class Case(NamedTuple):
    """``call``: what the engine's thread does while its stream is parked; ``helper``: who releases it."""

    call: str
    helper: str
    eager: bool


def cases() -> Iterator[Case]:
    """Yield every case; with eager loading only those that it could help."""
    for call in CALLS:
        for helper in HELPERS:
            yield Case(call, helper, eager=False)
    for call in ("first-launch", "runtime-launch", "module-load"):
        for helper in ("cuda", "self"):
            yield Case(call, helper, eager=True)


def run(program: Path, case: Case, limit_s: float) -> dict[str, Any]:
    """Return what became of a case; ``outcome`` "not run" where it could not be tried, with the reason."""
    variables = EAGER if case.eager else {}
    try:
        return once(program, [case.call, case.helper, f"{limit_s:g}"], timeout_s=PATIENCE_S, variables=variables)
    except BareError as error:
        loading = "EAGER" if case.eager else "default"
        return {
            "call": case.call, "helper": case.helper, "module_loading": loading, "outcome": "not run", "reason": str(error)
        }  # fmt: skip
