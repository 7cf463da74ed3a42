# SPDX-License-Identifier: Apache-2.0
"""Drill: sessions that end and begin anew on the same region, each with its watchdog, beside an engine that works."""

from __future__ import annotations

import os
import time

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np

from dsv41_rehearse import proc
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage
from dsv41_rehearse.drills.timed import Window
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.scenario import MODEL
from engine_shim import Batch, Mode, SessionOptions, SoftStream
from engine_shim.connection import hello_of
from engine_shim.handshake import Handshake, patient_until, reach
from engine_shim.region import Region
from engine_shim.session import Session, SessionTerms
from engine_shim.trust import trusted_uids
from hostflag.messages import EngineIdentity, Geometry
from hostflag.verdicts import Loss, Verdict


GEOMETRY: Final = Geometry(
    slots=8, max_requests=16, state_slots=64, row_bytes=768, window=16, drafts=5, vocab=256, ring_bytes=1 << 20
)
COUNTS: Final = (300, 20_000)
DEADLINE_MS: Final = 200.0
USUAL_MS: Final = 15.0  # that a round takes at most where nothing stands still
WAIT_S: Final = 5.0
FIRED: Final = (Verdict.EXPIRED, Verdict.LOST)
OK_EVERY: Final = 25  # sessions; most are over before their worker is linked
LINE_EVERY: Final = 2_000


class Small:
    """One request's device memory, and a batch of it: a row a step."""

    def __init__(self) -> None:
        g = GEOMETRY
        self.position: Any = np.zeros(1, np.int64)
        self.arrays: dict[str, Any] = {
            "positions": self.position, "tokens": np.zeros(1, np.int32), "num_sampled": np.ones(1, np.int32),
            "num_rejected": np.zeros(1, np.int32), "last_sampled": np.ones(g.state_slots, np.int64),
            "next_prefill": np.ones(g.state_slots, np.int32), "drafts_out": np.zeros((1, g.drafts), np.int64),
        }  # fmt: skip
        self.row: Any = np.zeros((1, g.row_bytes), np.uint8)
        self.batch = Batch(1)
        self.batch.set_request(0, slot=0, generation=1, first_row=0, rows=1, draft=True)
        self.batch.n_requests = 1
        self.batch.set_sources([(self.row.ctypes.data, self.row.strides[0], g.row_bytes)])
        self.batch.set_arrays(**{name: array.ctypes.data for name, array in self.arrays.items()})


@dataclass
class Resets:
    """
    An engine of one region whose sessions are short. ``verdicts``: of its rounds. ``lost``: sessions that did not end by goodbye.

    ``fired``: for each round that a watchdog ended, its session's time.
    """

    path: Path
    region: Region | None = None
    verdicts: Counter[str] = field(default_factory=Counter)
    fired: list[Window] = field(default_factory=list)
    lost: int = 0
    done: int = 0
    _small: Small = field(default_factory=Small)
    _stream: SoftStream = field(default_factory=SoftStream)

    def __enter__(self) -> Resets:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as exits:
            exits.callback(self._stream.close, WAIT_S)
            if self.region is not None:
                exits.callback(self.region.close)

    def once(self) -> None:
        """A session: handshake, rounds, goodbye. The region and its counter go on to the next one."""
        began_ns = time.monotonic_ns()
        session = self._begin()
        try:
            self._round(session)
            # Now and then a session lasts: then there are drafts, else it ends with its link hardly up.
            until = time.monotonic() + WAIT_S
            while self.done % OK_EVERY == 0 and self._round(session) != Verdict.OK.name and time.monotonic() < until:
                time.sleep(0.001)
            session.submit(self._small.batch)  # in flight when it ends
        finally:
            session.close(WAIT_S)
        more = self._count_fired() - len(self.fired)
        self.fired += [Window(began_ns, time.monotonic_ns())] * more
        self.lost += session.lost is not Loss.NONE
        self.done += 1

    def _round(self, session: Session) -> str:
        self._small.position[0] += 1
        ticket = session.submit(self._small.batch)
        self._stream.wait(self._stream.marker(), WAIT_S)
        if ticket.round is None:
            name = f"skipped {ticket.skip.name}"
        else:
            verdict = session.verdict(ticket.round)
            name = "?" if verdict is None else verdict.name
        self.verdicts[name] += 1
        return name

    def _begin(self) -> Session:
        options = SessionOptions()
        hello = hello_of(GEOMETRY, MODEL, EngineIdentity(name="resets", pid=os.getpid()), DEADLINE_MS)
        channel = reach(self.path, WAIT_S)
        handshake = Handshake(channel, hello, patient_until(time.monotonic() + WAIT_S), trusted_uids(self.path, ()))
        welcome = handshake.greet()
        if self.region is None:
            fd = handshake.create()
            self.region = Region(fd, self._stream, GEOMETRY, options.backlog(GEOMETRY))
            os.close(fd)  # the map stays
        else:
            base = self.region.base()
            if base is None:
                raise RuntimeError("the region is not at rest behind a session that has ended")
            self.region.offer()
            handshake.attach(self.region.fileno(), base)
        terms = SessionTerms(deadline_ms=DEADLINE_MS, mode=Mode.ASYNC, options=options, owns_region=False)
        ready = handshake.ready()
        return Session(self.region, channel, welcome=welcome, ready=ready, stream=self._stream, terms=terms)

    def _count_fired(self) -> int:
        """Return how many rounds of the region a watchdog ended."""
        if self.region is None:
            return 0
        rounds = self.region.status().rounds
        return sum(rounds.get(verdict.name, 0) for verdict in FIRED)


def _session_resets(plan: Plan) -> Row:
    count = plan.count(*COUNTS)
    grown: list[str] = []

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        # Gone before the run looks at what is left over.
        with resets:
            again_and_again(drafting)

    def again_and_again(drafting: ShimDrafting) -> None:
        resets.once()  # loads what is loaded once
        before = proc.footprint(stage.newest_daemon.pid)
        while resets.done < count and not drafting.sessions.over:
            resets.once()
            if resets.done % LINE_EVERY == 0:
                plan.say(f"{resets.done} of {count}")
        grown.extend(_settled_growth(stage.newest_daemon.pid, before))

    began = time.monotonic()
    with Stage(plan=plan, requests=1, worker_ms=1.0) as stage:
        resets = Resets(stage.stack.socket)
        played = stage.run(act)
    ms = (time.monotonic() - began) * 1e3 / max(1, resets.done)
    row = Row("session-resets", f"{resets.done} sessions one after the other on one region, {ms:.1f} ms each")
    row.leaks += [f"daemon {what}" for what in grown]
    row.expect(resets.done >= count, f"only {resets.done} of {count} sessions")
    row.expired("the short sessions", resets.fired, DEADLINE_MS, USUAL_MS, among=sum(resets.verdicts.values()))
    row.expect(resets.lost == 0, f"{resets.lost} sessions were lost")
    row.expect(resets.verdicts[Verdict.OK.name] >= count // OK_EVERY, "hardly a session had drafts")
    row.details["resets"] = dict(resets.verdicts)
    played.fill(row)
    expired, rounds = row.details["rounds"].get("EXPIRED", 0), sum(row.details["rounds"].values())
    row.expired("the engine beside them", played.expired, DEADLINE_MS, USUAL_MS, among=rounds)
    row.expect(expired == len(played.expired), f"{expired} rounds expired, {len(played.expired)} with a known time")
    return row


def _settled_growth(pid: int, before: proc.Footprint) -> list[str]:
    """Return what the daemon holds more than before, once it has had time to let go of the last session."""
    until = time.monotonic() + WAIT_S
    while (left := proc.footprint(pid).grown(before)) and time.monotonic() < until:
        time.sleep(0.05)
    return left


DRILLS: Final = (
    Drill(
        name="session-resets",
        fault="20,000 sessions that end and begin anew on one region, each with a live watchdog, beside an engine that works",
        bound="no watchdog ends a round, no session is lost, the daemon holds as much as before",
        run=_session_resets,
        quick_s=8,
        group="sessions",
    ),
)
