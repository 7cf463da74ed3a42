# SPDX-License-Identifier: Apache-2.0
"""One engine session as the stand-in uses it: batches of its scheduler in, rounds with their verdicts out."""

from __future__ import annotations

import time

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import engine_shim

from dsv41_rehearse.device import Device
from dsv41_rehearse.ledger import Shipped, SubmittedRound
from dsv41_rehearse.scenario import MODEL, Scenario
from dsv41_rehearse.scheduler import Item
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Verdict


CLOSE_S: Final = 5.0
OPEN: Final = Verdict.OPEN.name


@dataclass(frozen=True)
class Submission:
    """What a submit did: the drafting round (None: target-only step), why none, rounds put in all, rows shipped."""

    drafting: int | None
    skip: str
    rows: int
    rounds: Sequence[SubmittedRound]


class EngineSession:
    """A session of engine_shim. After its loss every submit is a target-only step."""

    def __init__(self, scenario: Scenario, stream: Any, socket: Path, *, name: str, timeout_s: float = 5.0) -> None:
        self.session: Any = engine_shim.connect(
            str(socket),
            geometry=scenario.geometry(),
            model=MODEL,
            engine=EngineIdentity(name=name),
            stream=stream,
            deadline_ms=scenario.deadline_ms,
            timeout_s=timeout_s,
        )
        self._batch: Any = None
        self._requests: Any = None
