# SPDX-License-Identifier: Apache-2.0
"""A scenario: every option of a rehearsal in one place, with its default."""

from __future__ import annotations

import math

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from dsv41_rehearse.text import BYTE_VALUES, Text
from hostflag import geometry as bounds
from hostflag.messages import Geometry


CpuLoad = Literal["spin", "sleep"]
CACHE_BLOCK: Final = 32  # tokens; prefix-cache hits are whole blocks
MAX_CHUNK: Final = 8192
MODEL: Final = "dsv41-rehearse/bytes"


_FLAGS: Final = {
    "slots": "--slots", "row_bytes": "--rows-bytes", "window": "--window", "drafts": "--k", "vocab": "--vocab",
    "ring_bytes": "--ring-bytes",
}  # fmt: skip


class ScenarioError(Exception):
    """An option that makes no sense; the message names it and its bounds."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """
    What the stand-in does. Times are ms; lengths are tokens, which are bytes of the text.

    ``rounds``: keep requests coming until so many drafting rounds were made; None: ``requests`` of them and no more.
    ``uniform``: all requests have this length and this prompt; else they vary. ``simulate_acceptance``: a pseudo-random number
    of drafts counts as accepted, whatever they are; the output stays the text.
    """

    text: Text
    requests: int = 6
    concurrency: int = 4
    length: int = 20_000
    prompt: int = 160
    prefill_rows: int = 128
    rounds: int | None = None
    arrival_steps: int = 150
    preempt_every: int = 4_000
    uniform: bool = False
    drafts: int = 5
    row_bytes: int = 30_720
    vocab: int = BYTE_VALUES
    window: int = 128
    slots: int = 8
    ring_bytes: int = 16 << 20
    gpu_ms: float = 1.0
    cpu_ms: float = 0.0
    cpu_load: CpuLoad = "spin"
    deadline_ms: float = 200.0
    seed: int = 1
    simulate_acceptance: bool = False

    def __post_init__(self) -> None:
        """Raise ScenarioError for the first option that is out of bounds."""
        whole: tuple[tuple[str, int, int, int], ...] = (
            ("--requests", self.requests, 1, 100_000),
            ("--concurrency", self.concurrency, 1, 256),
            ("--length", self.length, 32, 1 << 30),
            ("--prompt", self.prompt, 1, 1 << 20),
            ("--prefill-rows", self.prefill_rows, 1, MAX_CHUNK),
            ("--arrival-steps", self.arrival_steps, 0, 1 << 30),
            ("--preempt-every", self.preempt_every, 0, 1 << 30),
            ("--vocab", self.vocab, BYTE_VALUES, 1 << 30),
            ("--seed", self.seed, 0, (1 << 63) - 1),
        )
        for name, value, low, high in whole:
            if not low <= value <= high:
                raise ScenarioError(f"{name} is {value}: it must be from {low} to {high}")
        for name, ms, high_ms in (("--gpu-ms", self.gpu_ms, 10_000.0), ("--cpu-ms", self.cpu_ms, 10_000.0)):
            if not (math.isfinite(ms) and 0 <= ms <= high_ms):
                raise ScenarioError(f"{name} is {ms:g}: it must be from 0 to {high_ms:g} ms")
        if not (math.isfinite(self.deadline_ms) and 1 <= self.deadline_ms <= 60_000):
            raise ScenarioError(f"--deadline-ms is {self.deadline_ms:g}: it must be from 1 to 60000 ms")
        if self.rounds is not None and self.rounds < 1:
            raise ScenarioError(f"--rounds is {self.rounds}: it must be at least 1")
        self._check_geometry()

    def _check_geometry(self) -> None:
        geometry = self.geometry()
        try:
            reason = bounds.fault(geometry)
        except OverflowError as error:
            raise ScenarioError(f"the geometry does not fit: {error}") from error
        if reason is None:
            return
        name = reason.partition(" ")[0]
        least = bounds.least_ring_bytes(geometry) if name == "ring_bytes" else None
        if least is not None:
            rows = f"{geometry.max_requests} requests of {geometry.drafts} + 1 rows (--concurrency, --k) of {geometry.row_bytes} bytes (--rows-bytes)"
            reason = f"{reason}; here that is {least} or more, for {rows}"
        raise ScenarioError(f"{_FLAGS.get(name, '--concurrency')} is {getattr(geometry, name)}: {reason}")

    def geometry(self) -> Geometry:
        """Return what engine and daemon are to agree on."""
        return Geometry(
            slots=self.slots,
            max_requests=max(16, self.concurrency),
            state_slots=max(64, self.concurrency),
            row_bytes=self.row_bytes,
            window=self.window,
            drafts=self.drafts,
            vocab=self.vocab,
            ring_bytes=self.ring_bytes,
        )

    def options(self) -> dict[str, object]:
        """Return every option as plain values, for the report."""
        values: dict[str, object] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["text"] = {"name": self.text.name, "bytes": len(self.text)}
        return values

    def region_mib(self) -> float:
        """Return the size of one region of this geometry, MiB."""
        return bounds.region_bytes(self.geometry()) / (1 << 20)

    def describe(self) -> str:
        """Return the scenario in a line for people."""
        geometry = msgspec.structs.asdict(self.geometry())
        amount = f"{self.rounds} rounds" if self.rounds is not None else f"{self.requests} requests"
        return (
            f"{amount}, up to {self.concurrency} at once, of {self.text.name} ({len(self.text)} bytes); "
            f"rows of {geometry['row_bytes']} bytes, k = {self.drafts}, {self.gpu_ms:g} ms of GPU work a step"
        )
