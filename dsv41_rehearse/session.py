# SPDX-License-Identifier: Apache-2.0
"""One engine session as the stand-in uses it: batches of its scheduler in, rounds with their verdicts out."""

from __future__ import annotations

import os
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
from hostflag import region
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Verdict


CLOSE_S: Final = 5.0
CONNECT_S: Final = 5.0
DECIDE_S: Final = 1.0
OPEN: Final = Verdict.OPEN.name
_ROUNDS: Final = 1 << 32


@dataclass(frozen=True)
class Submission:
    """What a submit did: the drafting round (None: target-only step), why none, rows shipped, every round it put."""

    drafting: int | None
    skip: str
    rows: int
    rounds: Sequence[SubmittedRound]


class EngineSession:
    """A session of engine_shim. After its loss every submit is a target-only step."""

    def __init__(
        self,
        scenario: Scenario,
        stream: Any,
        device: Device,
        socket: Path,
        *,
        name: str,
        start_round: int | None = None,
    ) -> None:
        self._scenario = scenario
        self._session: Any = _connect(scenario, stream, socket, name, start_round)
        self._batch: Any = self._session.batch(scenario.concurrency)
        width = device.sources[0].shape[1]
        self._batch.set_sources([(source.ctypes.data, width, width) for source in device.sources])
        self._batch.set_arrays(
            positions=device.positions,
            tokens=device.tokens,
            num_sampled=device.num_sampled,
            num_rejected=device.num_rejected,
            last_sampled=device.last_sampled,
            next_prefill=device.next_prefill,
            drafts_out=device.drafts_out,
        )

    @property
    def id(self) -> int:
        """The session's 64-bit id."""
        return int(self._session.id)

    @property
    def daemon_pid(self) -> int:
        """The daemon's process id, as it says."""
        return int(self._session.welcome.pid)

    @property
    def lost(self) -> str | None:
        """Why the session was lost, None while it is there."""
        loss = self._session.lost
        return loss.name if loss else None

    def submit(self, items: Sequence[Item]) -> Submission:
        """Hand a step over. Its kernels are enqueued; nothing here waits."""
        requests = self._batch.requests
        for index, item in enumerate(items):
            request = requests[index]
            request.request_slot, request.generation = item.slot, item.generation
            request.first_row, request.rows, request.to_come = item.first_row, item.rows, item.to_come
            draft = engine_shim.DRAFT if item.draft else 0
            request.flags = draft | (engine_shim.PREFILL if item.prefill else 0)
        self._batch.n_requests = len(items)
        ticket = self._session.submit(self._batch)
        return Submission(ticket.round, ticket.skip.name, ticket.rows, self._rounds(ticket))

    def _rounds(self, ticket: Any) -> list[SubmittedRound]:
        """Return the rounds of a step with their request tables, which stay in their slots until S rounds later."""
        count = ticket.context_rounds + int(ticket.round is not None)
        if not count:
            return []
        last = ticket.round if ticket.round is not None else self._session.word("SUBMITTED")
        numbers = [(last - back) % _ROUNDS for back in range(count - 1, -1, -1)]
        return [SubmittedRound(number, number != ticket.round, OPEN, self._table(number)) for number in numbers]

    def _table(self, number: int) -> list[Shipped]:
        return [
            Shipped(one.request_slot, one.generation, one.rows, draft=one.draft, all_valid=one.all_valid)
            for one in self._session.requests(number)
        ]

    def with_verdicts(self, rounds: Sequence[SubmittedRound]) -> list[SubmittedRound]:
        """Return the rounds with the verdicts they have by now."""
        return [replace(one, verdict=self._session.verdict(one.round).name) for one in rounds]

    def decided(self, rounds: Sequence[SubmittedRound]) -> bool:
        """Whether each of these rounds has its verdict, or will never have one."""
        return bool(self._session.lost) or all(self._session.verdict(one.round) is not Verdict.OPEN for one in rounds)

    def wait_decided(self, rounds: Sequence[SubmittedRound]) -> None:
        """Wait, but not for ever, until these rounds have their verdicts: for the end of a run."""
        until = time.monotonic() + DECIDE_S
        while not self.decided(rounds) and time.monotonic() < until:
            time.sleep(0.001)

    def settle(self) -> None:
        """Book what has finished."""
        self._session.settle()

    def round_us(self, number: int) -> float | None:
        """Return the time from rows gathered to just before the stream was released, us; None where it is not known."""
        record = self._session.record(number)
        if record is None or not record.gathered_ns or not record.timing.decided_ns:
            return None
        return float(record.timing.decided_ns - record.gathered_ns) / 1e3

    def status(self) -> dict[str, Any]:
        """Return the shim's own account as plain values."""
        return dict(self._session.status())

    def close(self) -> None:
        """Say goodbye; wait until the stream is past everything."""
        self._session.close(CLOSE_S)


def _connect(scenario: Scenario, stream: Any, socket: Path, name: str, start_round: int | None) -> Any:
    common: dict[str, Any] = {
        "geometry": scenario.geometry(),
        "model": MODEL,
        "engine": EngineIdentity(name=name, pid=os.getpid()),
        "stream": stream,
        "deadline_ms": scenario.deadline_ms,
        "timeout_s": CONNECT_S,
    }
    if start_round is None:
        return engine_shim.connect(str(socket), **common)
    # A region of our own whose counter stands there already, handed over as one that a lost session left.
    fd = region.create(scenario.geometry())
    try:
        base = (start_round - 1) % _ROUNDS
        region.rebase(fd, base)
        return engine_shim.connect(str(socket), adopt=(fd, base), **common)
    finally:
        os.close(fd)
