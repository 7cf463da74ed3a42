# SPDX-License-Identifier: Apache-2.0
"""One engine session as the stand-in uses it: batches of its scheduler in, rounds with their verdicts out."""

from __future__ import annotations

import errno
import os
import time

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import engine_shim

from dsv41_rehearse.device import Device
from dsv41_rehearse.ledger import SubmittedRound
from dsv41_rehearse.scenario import MODEL, Scenario
from dsv41_rehearse.scheduler import Item
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Loss, Skip, Verdict


CLOSE_S: Final = 5.0
CONNECT_S: Final = 5.0
DECIDE_S: Final = 1.0
_ROUNDS: Final = 1 << 32


@dataclass(frozen=True)
class Submission:
    """What a submit did. ``drafting``: the drafting round, None for a target-only step, then ``skip`` says why."""

    drafting: int | None
    skip: str
    rows: int
    rounds: Sequence[SubmittedRound]
    taken_us: float


class EngineSession:
    """A session of engine_shim. After its loss every submit is a target-only step."""

    def __init__(
        self,
        scenario: Scenario,
        stream: engine_shim.SoftStream,
        device: Device,
        socket: Path,
        *,
        name: str,
        start_round: int | None = None,
    ) -> None:
        self._scenario = scenario
        # The base is the round before the first; one that is not 0 makes the shim bring a region of its own.
        base = 0 if start_round is None else (start_round - 1) % _ROUNDS
        self._session = engine_shim.connect(
            socket,
            geometry=scenario.geometry(),
            model=MODEL,
            engine=EngineIdentity(name=name, pid=os.getpid()),
            stream=stream,
            deadline_ms=scenario.deadline_ms,
            timeout_s=CONNECT_S,
            options=engine_shim.SessionOptions(base=base),
        )
        self._batch = self._session.batch(scenario.concurrency)
        width = device.sources[0].shape[1]
        self._batch.set_sources([(source.ctypes.data, width, width) for source in device.sources])
        self._batch.set_arrays(
            positions=device.positions.ctypes.data,
            tokens=device.tokens.ctypes.data,
            num_sampled=device.num_sampled.ctypes.data,
            num_rejected=device.num_rejected.ctypes.data,
            last_sampled=device.last_sampled.ctypes.data,
            next_prefill=device.next_prefill.ctypes.data,
            drafts_out=device.drafts_out.ctypes.data,
        )

    @property
    def id(self) -> int:
        """The session's 64-bit id."""
        return self._session.id

    @property
    def daemon_pid(self) -> int:
        """The daemon's process id, as it says."""
        return self._session.welcome.pid

    @property
    def metrics(self) -> str | None:
        """Where the daemon serves its metrics, as it says."""
        return self._session.welcome.metrics

    @property
    def lost(self) -> str | None:
        """Why the session was lost, None while it is there."""
        loss = self._session.lost
        return None if loss is Loss.NONE else loss.name

    def submit(self, items: Sequence[Item]) -> Submission:
        """Hand a step over. Its kernels are enqueued; nothing here waits."""
        for index, item in enumerate(items):
            self._batch.set_request(
                index,
                slot=item.slot,
                generation=item.generation,
                first_row=item.first_row,
                rows=item.rows,
                draft=item.draft,
                prefill=item.prefill,
                to_come=item.to_come,
            )
        self._batch.n_requests = len(items)
        began = time.perf_counter_ns()
        try:
            ticket = self._session.submit(self._batch)
        except engine_shim.SubmitFailed as failure:
            if failure.error == errno.EINVAL:
                raise
            # A stream operation failed: the session is lost, the engine goes on.
            return Submission(None, Skip.NO_SESSION.name, 0, (), 0.0)
        taken_us = (time.perf_counter_ns() - began) / 1e3
        # A round's table stays in its slot until S rounds later.
        rounds = [SubmittedRound(table=self._session.table(number)) for number in ticket.rounds]
        return Submission(ticket.round, ticket.skip.name, ticket.rows, rounds, taken_us)

    def with_verdicts(self, rounds: Sequence[SubmittedRound]) -> list[SubmittedRound]:
        """Return the rounds with the verdicts they have by now."""
        return [replace(one, verdict=self._verdict(one.table.round).name) for one in rounds]

    def decided(self, rounds: Sequence[SubmittedRound]) -> bool:
        """Whether each of these rounds has its verdict, or will never have one."""
        open_ones = [one for one in rounds if self._verdict(one.table.round) is Verdict.OPEN]
        return not open_ones or self._session.lost is not Loss.NONE

    def _verdict(self, number: int) -> Verdict:
        verdict = self._session.verdict(number)
        if verdict is not None:
            return verdict
        # Its slot went on, which it does only behind a round that was booked.
        record = self._record(number)
        return Verdict.OPEN if record is None else record.verdict

    def _record(self, number: int) -> engine_shim.RoundRecord | None:
        try:
            return self._session.record(number)
        except LookupError:
            return None

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
        record = self._record(number)
        if record is None or not record.gathered_ns or not record.timing.decided_ns:
            return None
        return (record.timing.decided_ns - record.gathered_ns) / 1e3

    def status(self) -> dict[str, Any]:
        """Return the shim's own account as plain values."""
        return asdict(self._session.status())

    def close(self) -> None:
        """Say goodbye; wait until the stream is past everything."""
        self._session.close(CLOSE_S)
