# SPDX-License-Identifier: Apache-2.0
"""Where the stand-in's drafts come from: a shim and whatever daemon is behind it at the moment, or nowhere."""

from __future__ import annotations

import errno
import os
import time

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import engine_shim

from dsv41_rehearse.device import Device
from dsv41_rehearse.ledger import SubmittedRound
from dsv41_rehearse.scenario import MODEL, Scenario
from dsv41_rehearse.scheduler import Item
from dsv41_rehearse.sessions import Sessions
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Skip, Verdict


ModeName = Literal["async", "sync", "none"]
CLOSE_S: Final = 5.0
CONNECT_S: Final = 5.0
DECIDE_S: Final = 1.0
NO_SHIM: Final = "NO_SHIM"  # why a step of mode none has no round
# A step that is refused for these reasons leaves its prompt rows out for good; others keep them for a later round.
_LEAVE_OUT: Final = {Skip.NO_SESSION, Skip.DRAINING}
_ROUNDS: Final = 1 << 32


@dataclass(frozen=True)
class Submission:
    """
    What a submit did. ``drafting``: whether there is a drafting round; else ``skip`` says why not.

    ``session``: whose rounds these are. ``left_out``: the step's prompt rows never reach a drafter.
    """

    drafting: bool
    skip: str
    rows: int
    rounds: Sequence[SubmittedRound]
    session: int | None
    left_out: bool
    taken_us: float


class Drafting(Protocol):
    """What the engine thread asks of it. Nothing but ``wait_decided`` and ``close`` waits (and ``submit`` in mode sync)."""

    def submit(self, items: Sequence[Item]) -> Submission: ...
    def with_verdicts(self, rounds: Sequence[SubmittedRound]) -> list[SubmittedRound]: ...
    def decided(self, rounds: Sequence[SubmittedRound]) -> bool: ...
    def wait_decided(self, rounds: Sequence[SubmittedRound]) -> None: ...
    def settle(self) -> None: ...
    def record(self, submitted: SubmittedRound) -> engine_shim.RoundRecord | None: ...
    def status(self) -> dict[str, Any]: ...
    @property
    def lost(self) -> str | None: ...


class NoDrafting:
    """Mode none: the engine decodes by itself. No shim, no daemon."""

    lost: str | None = None

    def submit(self, items: Sequence[Item]) -> Submission:
        """No round."""
        return Submission(
            drafting=False, skip=NO_SHIM, rows=0, rounds=(), session=None, left_out=True, taken_us=float(not items)
        )

    def with_verdicts(self, rounds: Sequence[SubmittedRound]) -> list[SubmittedRound]:
        return list(rounds)

    def decided(self, rounds: Sequence[SubmittedRound]) -> bool:
        return not rounds

    def wait_decided(self, rounds: Sequence[SubmittedRound]) -> None: ...

    def settle(self) -> None: ...

    def record(self, submitted: SubmittedRound) -> engine_shim.RoundRecord | None:
        raise LookupError(f"round {submitted.table.round}: there are no rounds in mode none")

    def status(self) -> dict[str, Any]:
        return {}


class ShimDrafting:
    """
    A shim. Without a session a step is target-only. ``sessions``: who was there, for whoever wants to know.

    ``begin`` before anything else. ``respawns`` None: the shim's own budget. ``shim``: further ones of its options.

    ``on_submit``: called by the engine thread ahead of each submit, ``on_submitted`` after it with whether a stream operation failed.
    """

    def __init__(
        self,
        scenario: Scenario,
        stream: engine_shim.SoftStream,
        device: Device,
        socket: Path,
        *,
        name: str,
        mode: engine_shim.Mode = engine_shim.Mode.ASYNC,
        start_round: int | None = None,
        respawns: int | None = None,
        shim: Mapping[str, Any] | None = None,
    ) -> None:
        # The base is the round before the first; one that is not 0 makes the shim bring a region of its own.
        base = 0 if start_round is None else (start_round - 1) % _ROUNDS
        options = engine_shim.ShimOptions(
            deadline_ms=scenario.deadline_ms,
            start_timeout_s=0.0,
            session=engine_shim.SessionOptions(base=base),
        )
        budget: dict[str, Any] = {} if respawns is None else {"respawns": respawns}
        self._shim = engine_shim.Shim(
            socket,
            geometry=scenario.geometry(),
            model=MODEL,
            engine=EngineIdentity(name=name, pid=os.getpid()),
            stream=stream,
            mode=mode,
            options=replace(options, **budget, **(shim or {})),
        )
        self.stream = stream
        self.sessions = Sessions()
        self.on_submit: Callable[[], None] | None = None
        self.on_submitted: Callable[[bool], None] | None = None
        self._batch = self._shim.batch(scenario.concurrency)
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

    def begin(self) -> None:
        """Wait for the first session. Raises what the shim raises where there is none."""
        self._shim.first_session(CONNECT_S)
        self._meet()

    def _meet(self) -> None:
        """Note a session that is new."""
        session, welcome = self._shim.session, self._shim.welcome
        if session is None or welcome is None or session == self.sessions.newest_id:
            return
        status = self._shim.status()
        self.sessions.meet(session, welcome.pid, welcome.metrics, status.lost_ns, status.last_loss)

    @property
    def lost(self) -> str | None:
        """Why the last session was lost, None while there is one."""
        return None if self._shim.session is not None else self._shim.status().last_loss

    def submit(self, items: Sequence[Item]) -> Submission:
        """Hand a step over. Its kernels are enqueued; in mode sync the reply is there on return, else nothing here waits."""
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
        if self.on_submit is not None:
            self.on_submit()
        began = time.perf_counter_ns()
        failed = False
        try:
            ticket = self._shim.submit(self._batch)
        except engine_shim.SubmitFailed as failure:
            if failure.error == errno.EINVAL:
                raise
            # A stream operation failed: the session is lost, the engine goes on.
            ticket, failed = engine_shim.Ticket(None, Skip.NO_SESSION, 0, 0, 0, 0), True
        taken_us = (time.perf_counter_ns() - began) / 1e3
        if self.on_submitted is not None:
            self.on_submitted(failed)
        if ticket.session is not None and ticket.session != self.sessions.newest_id:
            self._meet()
        # A round's table stays in its slot until S rounds later.
        rounds = [SubmittedRound(table=self._shim.table(ref), session=ref.session) for ref in ticket.refs]
        return Submission(
            drafting=ticket.round is not None,
            skip=ticket.skip.name,
            rows=ticket.rows,
            rounds=rounds,
            session=ticket.session,
            left_out=ticket.skip in _LEAVE_OUT,
            taken_us=taken_us,
        )

    def with_verdicts(self, rounds: Sequence[SubmittedRound]) -> list[SubmittedRound]:
        """Return the rounds with the verdicts they have by now."""
        return [replace(one, verdict=self._verdict(one).name) for one in rounds]

    def decided(self, rounds: Sequence[SubmittedRound]) -> bool:
        """Whether each of these rounds has its verdict. A lost session's have theirs as soon as they are gathered."""
        return all(self._verdict(one) is not Verdict.OPEN for one in rounds)

    def _verdict(self, submitted: SubmittedRound) -> Verdict:
        verdict = self._shim.verdict(submitted.ref)
        if verdict is not None:
            return verdict
        # Its slot went on, which it does only behind a round that was booked.
        record = self.record(submitted)
        return Verdict.OPEN if record is None else record.verdict

    def record(self, submitted: SubmittedRound) -> engine_shim.RoundRecord | None:
        """Return the flight record of a settled round, None where there is none (any more)."""
        try:
            return self._shim.record(submitted.ref)
        except LookupError:
            return None

    def wait_decided(self, rounds: Sequence[SubmittedRound]) -> None:
        """Wait, but not for ever, until these rounds have their verdicts: for the end of a run."""
        until = time.monotonic() + DECIDE_S
        while not self.decided(rounds) and time.monotonic() < until:
            time.sleep(0.001)

    def settle(self) -> None:
        """Book what has finished."""
        self._shim.settle()

    def status(self) -> dict[str, Any]:
        """Return the shim's own account as plain values."""
        return asdict(self.shim_status())

    def shim_status(self) -> engine_shim.ShimStatus:
        """Return the shim's own account. Any thread."""
        return self._shim.status()

    def close(self) -> None:
        """Say goodbye; wait until the stream is past everything."""
        self._shim.close(CLOSE_S)
