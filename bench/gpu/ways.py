# SPDX-License-Identifier: Apache-2.0
"""The ways in which an engine can have its drafts, as its loop sees them: none, synchronous, a thread of its own, the product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.gpu.product import Engine, ProductError, with_shim
from bench.gpu.step import GEOMETRY, Item, Tensors, decoding, fill
from bench.gpu.threadproxy import ThreadProxy
from dsv41_rehearse.samples import Samples
from engine_shim import Mode
from engine_shim.cudastream import CudaStream
from hostflag.verdicts import Verdict


@dataclass(frozen=True)
class Place:
    """What every way is given: torch's stream, ours on the same handle, the tensors, a daemon's socket, a worker's endpoint."""

    torch_stream: Any
    stream: CudaStream
    tensors: Tensors
    socket: Path
    worker: str


class Way(Protocol):
    """``submit`` returns whether the drafts are there: then it has waited, and nothing of the next step was launched meanwhile."""

    def submit(self, items: Sequence[Item]) -> bool: ...
    def rounds(self) -> dict[str, Any]: ...


class NoDrafts:
    """Decodes by itself."""

    def submit(self, items: Sequence[Item]) -> bool:
        """No round."""
        return not items

    def rounds(self) -> dict[str, Any]:
        return {}


class Product:
    """A shim, asynchronous or synchronous. ``worker_us``: from seen gathered to decided."""

    def __init__(self, engine: Engine, *, waits: bool) -> None:
        self._waits = waits
        self._engine = engine
        self._refs: list[Any] = []
        self._decided = Samples()
        self._ok = self._others = 0

    def submit(self, items: Sequence[Item]) -> bool:
        fill(self._engine.batch, items)
        ticket = self._engine.shim.submit(self._engine.batch)
        if ticket.ref is not None:
            self._refs.append(ticket.ref)
        elif any(item.draft for item in items):
            self._others += 1
        self._book(4)
        return self._waits and ticket.ref is not None

    def _book(self, keep: int) -> None:
        """Book rounds once they are over for sure."""
        shim = self._engine.shim
        while len(self._refs) > keep:
            record = shim.record(self._refs.pop(0))
            self._ok += record.verdict is Verdict.OK
            self._others += record.verdict is not Verdict.OK
            if record.verdict is Verdict.OK:
                self._decided.add((record.timing.decided_ns - record.timing.seen_ns) / 1e6)

    def rounds(self) -> dict[str, Any]:
        self._engine.shim.settle()
        self._book(0)
        return {"ok": self._ok, "others": self._others, "seen_to_decided_ms": self._decided.percentile(50)}


class Thread:
    """The thread proxy."""

    def __init__(self, proxy: ThreadProxy) -> None:
        self._proxy = proxy

    def submit(self, items: Sequence[Item]) -> bool:
        self._proxy.submit(items)
        return False

    def rounds(self) -> dict[str, Any]:
        released = Samples()
        released.values.extend(self._proxy.released_ms)
        return {
            "ok": len(self._proxy.released_ms) - self._proxy.failed, "others": self._proxy.failed,
            "seen_to_decided_ms": released.percentile(50),
        }  # fmt: skip


@contextmanager
def way(name: str, place: Place, requests: int) -> Iterator[Way]:
    """Give a way of this name, warm. Raises ProductError where it does not work."""
    if name == "none":
        yield NoDrafts()
    elif name == "thread":
        proxy = ThreadProxy(place.stream, place.tensors, GEOMETRY, place.worker)
        try:
            yield Thread(proxy)
        finally:
            place.torch_stream.synchronize()
            proxy.close()
    else:
        mode = Mode.SYNC if name == "sync" else Mode.ASYNC
        engine = with_shim(place.socket, place.stream, place.tensors, name=f"overlap-{name}", mode=mode)
        try:
            if engine.shim.status().mode is not mode:
                raise ProductError(f"rounds are {engine.shim.status().mode}: {engine.shim.status().async_refusal}")
            engine.until_ok(decoding(requests))
            yield Product(engine, waits=mode is Mode.SYNC)
        finally:
            place.torch_stream.synchronize()
            engine.close()
