# SPDX-License-Identifier: Apache-2.0
"""The whole way of a round, measured from its flight record: gathered to released, and what the daemon itself took."""

from __future__ import annotations

import os
import time

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

import engine_shim

from dsv41_rehearse import interrupts
from dsv41_rehearse.bench_case import MODEL, Case
from dsv41_rehearse.device import I32, I64, keep
from dsv41_rehearse.samples import Samples
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Loss, Verdict


CLOSE_S: Final = 5.0
ROUND_S: Final = 2.0


@dataclass
class RoundSamples:
    """Microseconds. ``wake``: gathered to seen by the daemon. ``own``: seen to decided, less the transport and the worker."""

    round: Samples = field(default_factory=Samples)
    own: Samples = field(default_factory=Samples)
    send: Samples = field(default_factory=Samples)
    submit: Samples = field(default_factory=Samples)
    wake: Samples = field(default_factory=Samples)
    failed: int = 0

    def extend(self, other: RoundSamples) -> None:
        """Append another's."""
        for name in ("round", "own", "send", "submit", "wake"):
            getattr(self, name).values.extend(getattr(other, name).values)
        self.failed += other.failed


class RoundPath:
    """One engine session that does rounds of one request, one at a time. ``losses``: gets why it was lost, if it was."""

    def __init__(self, socket: Path, case: Case, name: str, losses: Counter[str] | None = None) -> None:
        self._case = case
        self._losses: Counter[str] = Counter() if losses is None else losses
        self._stream = engine_shim.SoftStream()
        self.session = engine_shim.connect(
            socket, geometry=case.geometry, model=MODEL, engine=EngineIdentity(name=f"{name}-{os.getpid()}"),
            stream=self._stream,
        )  # fmt: skip
        geometry = case.geometry
        rows = len(case.source) // geometry.row_bytes
        self._positions: I64 = np.arange(rows, dtype=np.int64)
        self._tokens: I32 = np.ones(rows, np.int32)
        self._sampled: I32 = np.ones(geometry.max_requests, np.int32)
        self._rejected: I32 = np.zeros(geometry.max_requests, np.int32)
        self._last: I64 = np.ones(geometry.state_slots, np.int64)
        self._next: I32 = np.ones(geometry.state_slots, np.int32)
        self._drafts: I64 = np.zeros((geometry.max_requests, geometry.drafts), np.int64)
        self._batch = self.session.batch(1)
        self._batch.set_sources([(case.source.ctypes.data, geometry.row_bytes, geometry.row_bytes)])
        self._batch.set_arrays(
            positions=self._positions.ctypes.data, tokens=self._tokens.ctypes.data, num_sampled=self._sampled.ctypes.data, num_rejected=self._rejected.ctypes.data,
            last_sampled=self._last.ctypes.data, next_prefill=self._next.ctypes.data, drafts_out=self._drafts.ctypes.data,
        )  # fmt: skip

    def close(self) -> None:
        """End session and stream."""
        with interrupts.held():
            try:
                if (lost := self.session.lost) is not Loss.NONE:
                    self._losses[lost.name] += 1
                self.session.close(CLOSE_S)
                self._stream.close(CLOSE_S)
            except BaseException:
                keep(self)
                raise

    def measure(self, rows: int, seconds: float) -> RoundSamples:
        """Do rounds of ``rows`` rows for so long."""
        samples = RoundSamples()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.one(rows, int(self._case.gpu_ms * 1e6), samples)
        return samples

    def one(self, rows: int, gpu_ns: int, samples: RoundSamples) -> None:
        """Do one round after ``gpu_ns`` of simulated GPU work."""
        self._batch.set_request(0, slot=0, generation=1, first_row=0, rows=rows, draft=True)
        self._batch.n_requests = 1
        self._stream.work(gpu_ns)
        began = time.perf_counter_ns()
        ticket = self.session.submit(self._batch)
        taken = time.perf_counter_ns() - began
        self._stream.wait(self._stream.marker(), ROUND_S)
        self.session.settle()
        if ticket.round is None:
            samples.failed += 1
            return
        samples.submit.add(taken / 1e3)
        self._book(ticket.round, samples)

    def _book(self, number: int, samples: RoundSamples) -> None:
        record = self.session.record(number)
        if record.verdict is not Verdict.OK:
            samples.failed += 1
            return
        timing = record.timing
        samples.round.add((timing.decided_ns - record.gathered_ns) / 1e3)
        samples.wake.add((timing.seen_ns - record.gathered_ns) / 1e3)
        samples.send.add((timing.sent_ns - timing.send_ns) / 1e3)
        network = timing.replied_ns - timing.send_ns
        samples.own.add((timing.decided_ns - timing.seen_ns - network) / 1e3)
