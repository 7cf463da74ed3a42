# SPDX-License-Identifier: Apache-2.0
"""Rounds through the whole product: a shim on a CUDA stream, a daemon, a worker in processes of their own."""

from __future__ import annotations

import os
import time

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.gpu.step import GEOMETRY, MODEL, Item, Tensors, fill
from dsv41_rehearse.samples import Samples
from engine_shim import Mode, RoundRef, Shim, ShimOptions
from engine_shim.cudastream import CudaStream
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Verdict


START_S: Final = 30.0
ROUND_S: Final = 5.0
CLOSE_S: Final = 10.0
SPINNING: Final = {"spin_us": 10_000.0, "nap_us": 10_000.0}  # no nap is worth its time: the loop spins
NAPPING: Final = {"spin_us": 50.0, "nap_us": 20.0}  # the daemon's own defaults


class ProductError(Exception):
    """The product did not do what the bench needs; the message says what."""


@dataclass
class Rounds:
    """Microseconds of rounds that ended OK. ``total``: submit to consumed; ``own``: that, less what the network took."""

    submit: Samples = field(default_factory=Samples)
    total: Samples = field(default_factory=Samples)
    own: Samples = field(default_factory=Samples)
    network: Samples = field(default_factory=Samples)
    failed: int = 0


class Engine:
    """A shim on a stream, with its tensors. ``options`` as ShimOptions takes them."""

    def __init__(
        self, socket: Path, stream: CudaStream, tensors: Tensors, *, name: str, mode: Mode = Mode.ASYNC,
        options: ShimOptions | None = None,
    ) -> None:  # fmt: skip
        self.stream = stream
        self.tensors = tensors
        self.shim = Shim(
            socket, geometry=GEOMETRY, model=MODEL, engine=EngineIdentity(name=f"{name}-{os.getpid()}", pid=os.getpid()),
            stream=stream, mode=mode, options=options or options_of(),
        )  # fmt: skip
        self.batch = self.shim.batch()
        tensors.bind(self.batch)

    def close(self) -> None:
        """End the session; the stream and the tensors stay the caller's."""
        self.shim.close(CLOSE_S)

    def until_ok(self, items: Sequence[Item]) -> None:
        """Do rounds until one ends OK: the worker is there. Raises ProductError where none does."""
        until = time.monotonic() + START_S
        fill(self.batch, items)
        while time.monotonic() < until:
            ref = self.shim.submit(self.batch).ref
            if ref is not None:
                self.wait(ref)
                if self.shim.verdict(ref) is Verdict.OK:
                    return
            time.sleep(0.01)
        raise ProductError(f"no round ended OK within {START_S:g} s: {self.shim.status()}")

    def wait(self, ref: RoundRef) -> None:
        """Look at consumed until it is there, as fast as Python can."""
        consumed, until = self.shim.consumed, time.monotonic() + ROUND_S
        while not consumed(ref):
            if time.monotonic() > until:
                raise ProductError(f"round {ref.round} is not consumed after {ROUND_S:g} s: {self.shim.status()}")

    def measure(self, items: Sequence[Item], count: int, rounds: Rounds, *, warm: int = 50) -> None:
        """Do ``count`` rounds of these requests, one at a time, behind ``warm`` that are not booked."""
        fill(self.batch, items)
        now, submit, batch = time.perf_counter_ns, self.shim.submit, self.batch
        for index in range(warm + count):
            began = now()
            ticket = submit(batch)
            submitted = now()
            if (ref := ticket.ref) is None:
                rounds.failed += 1
                time.sleep(0.01)
                continue
            self.wait(ref)
            ended = now()
            self.shim.settle()
            if index >= warm:
                self._book(ref, began, submitted, ended, rounds)

    def _book(self, ref: RoundRef, began: int, submitted: int, ended: int, rounds: Rounds) -> None:
        record = self.shim.record(ref)
        if record.verdict is not Verdict.OK:
            rounds.failed += 1
            return
        network = record.timing.replied_ns - record.timing.send_ns
        rounds.submit.add((submitted - began) / 1e3)
        rounds.total.add((ended - began) / 1e3)
        rounds.network.add(network / 1e3)
        rounds.own.add((ended - began - network) / 1e3)


def options_of(*, spin_us: float | None = None, nap_us: float | None = None, respawns: int = 1000) -> ShimOptions:
    """Return a shim's options: strict, since a bench without a session measures nothing."""
    return ShimOptions(
        strict=True, start_timeout_s=START_S, handshake_s=10.0, spin_us=spin_us, nap_us=nap_us, respawns=respawns
    )
