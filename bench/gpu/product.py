# SPDX-License-Identifier: Apache-2.0
"""Rounds through the whole product: an engine's thread on a CUDA stream, a daemon and a worker in processes of their own."""

from __future__ import annotations

import os
import time

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import engine_shim

from bench.gpu.step import GEOMETRY, MODEL, Item, Tensors, fill
from dsv41_rehearse.samples import Samples
from dsv41_rehearse.stack import Child, Stack
from engine_shim import Mode, RoundRef, Session, SessionOptions, Shim, ShimOptions
from engine_shim.cudastream import CudaStream
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Verdict


START_S: Final = 30.0
ROUND_S: Final = 5.0
CLOSE_S: Final = 10.0
# No nap is worth its time: the loop spins.
SPINNING: Final = ("--spin-us", "10000", "--nap-us", "10000")
NAPPING: Final = ()  # the daemon's own defaults


class ProductError(Exception):
    """The product did not do what the bench needs; the message says what."""


@dataclass
class Rounds:
    """Microseconds of rounds that ended OK. ``total``: submit to consumed; ``own``: that, less what the transport took."""

    submit: Samples = field(default_factory=Samples)
    total: Samples = field(default_factory=Samples)
    own: Samples = field(default_factory=Samples)
    failed: int = 0


def start_daemon(stack: Stack, worker: str, name: str, flags: Sequence[str] = ()) -> tuple[Child, Path]:
    """Start a daemon of a stack with these flags; return it, ready, and its socket."""
    socket = stack.directory / f"{name}.sock"
    fixed = ["--socket", str(socket), "--worker", worker, "--metrics", "127.0.0.1:0", "--log-format", "json"]
    daemon = stack.start(name, "proxyd", [*fixed, *flags])
    daemon.ready()
    return daemon, socket


class Engine:
    """Whoever submits: to a shim, or to an echo session, whose daemon answers by itself (``engine_shim.echo``)."""

    def __init__(self, target: Shim | Session, stream: CudaStream, tensors: Tensors) -> None:
        self.target: Any = target
        self.stream = stream
        self.tensors = tensors
        self._by_number = isinstance(target, Session)
        self.batch = target.batch()
        tensors.bind(self.batch)

    @property
    def shim(self) -> Shim:
        """The shim of an engine that has one."""
        assert isinstance(self.target, Shim)
        return self.target

    def close(self) -> None:
        """End the session; the stream and the tensors stay the caller's."""
        self.target.close(CLOSE_S)

    def until_ok(self, items: Sequence[Item]) -> None:
        """Do rounds until one ends OK: the worker is there. Raises ProductError where none does."""
        until = time.monotonic() + START_S
        fill(self.batch, items)
        while time.monotonic() < until:
            ref = self._ref(self.target.submit(self.batch))
            if ref is not None:
                self.wait(ref)
                if self.target.verdict(ref) is Verdict.OK:
                    return
            time.sleep(0.01)
        raise ProductError(f"no round ended OK within {START_S:g} s: {self.target.status()}")

    def wait(self, ref: RoundRef | int) -> None:
        """Look at consumed until it is there, as fast as Python can."""
        consumed, until = self.target.consumed, time.monotonic() + ROUND_S
        while not consumed(ref):
            if time.monotonic() > until:
                raise ProductError(f"{ref} is not consumed after {ROUND_S:g} s: {self.target.status()}")

    def measure(self, items: Sequence[Item], count: int, rounds: Rounds, *, warm: int = 50) -> None:
        """Do ``count`` rounds of these requests (none: empty rounds), one at a time, behind ``warm`` that are not booked."""
        fill(self.batch, items)
        self.batch.empty = not items
        now, submit, batch = time.perf_counter_ns, self.target.submit, self.batch
        for index in range(warm + count):
            began = now()
            ticket = submit(batch)
            submitted = now()
            ref = self._ref(ticket)
            if ref is None:
                rounds.failed += 1
                time.sleep(0.01)
                continue
            self.wait(ref)
            ended = now()
            self.target.settle()
            if index >= warm:
                self._book(ref, (began, submitted, ended), rounds)

    def _ref(self, ticket: engine_shim.Ticket) -> RoundRef | int | None:
        return ticket.round if self._by_number else ticket.ref

    def _book(self, ref: RoundRef | int, times: tuple[int, int, int], rounds: Rounds) -> None:
        began, submitted, ended = times
        record = self.target.record(ref)
        if record.verdict is not Verdict.OK:
            rounds.failed += 1
            return
        network = record.timing.replied_ns - record.timing.send_ns
        rounds.submit.add((submitted - began) / 1e3)
        rounds.total.add((ended - began) / 1e3)
        rounds.own.add((ended - began - network) / 1e3)


def with_shim(
    socket: Path, stream: CudaStream, tensors: Tensors, *, name: str, mode: Mode = Mode.ASYNC, respawns: int = 1000
) -> Engine:
    """Return an engine on a shim. Strict: a bench without a session measures nothing."""
    options = ShimOptions(strict=True, start_timeout_s=START_S, handshake_s=10.0, respawns=respawns)
    shim = Shim(
        socket, geometry=GEOMETRY, model=MODEL, engine=EngineIdentity(name=f"{name}-{os.getpid()}", pid=os.getpid()),
        stream=stream, mode=mode, options=options,
    )  # fmt: skip
    return Engine(shim, stream, tensors)


def with_echo(socket: Path, stream: CudaStream, tensors: Tensors, *, name: str, echo_us: float = 0.0) -> Engine:
    """Return an engine on a session whose rounds the daemon answers itself after ``echo_us``: nothing of a network is in them."""
    session = engine_shim.connect(
        socket, geometry=GEOMETRY, model=MODEL, engine=EngineIdentity(name=f"{name}-{os.getpid()}", pid=os.getpid()),
        stream=stream, timeout_s=START_S, options=SessionOptions(echo_us=echo_us),
    )  # fmt: skip
    return Engine(session, stream, tensors)
