# SPDX-License-Identifier: Apache-2.0
"""A shim with an engine thread's habits, for tests."""

from __future__ import annotations

import contextlib
import os

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_device import Ask, Device
from engine_hand import PATIENCE_S, until
from engine_harness import SMALL, drained

from engine_shim import Mode, Shim, ShimOptions, SoftStream, Ticket
from hostflag.messages import EngineIdentity, Geometry
from hostflag.verdicts import Verdict


class Driver:
    """Submits steps of one request, or of those it is given, and waits for the stream."""

    def __init__(self, shim: Shim, stream: SoftStream, geometry: Geometry = SMALL) -> None:
        self.shim = shim
        self.stream = stream
        self.device = Device(geometry)
        self.batch = shim.batch()
        self._position = 0

    def submit(self, asks: Sequence[Ask] = (), *, drafts: bool = True) -> tuple[Ticket, npt.NDArray[np.int64]]:
        """Enqueue a step; return its ticket and drafts_out."""
        if not asks:
            self._position += 1
            asks = [Ask(0, 1, first=self._position)]
        out = self.device.fill(self.batch, asks, drafts=drafts)
        return self.shim.submit(self.batch), out

    def step(self) -> tuple[Ticket, Verdict | None, list[list[int]]]:
        """Do a whole step; its memory can go then."""
        ticket, out = self.submit()
        drained(self.stream)
        self.device.kept.clear()
        return ticket, self.shim.verdict(ticket.ref) if ticket.ref else None, out.tolist()

    def ok(self) -> Ticket:
        """Step until a round ends OK."""
        found: list[Ticket] = []

        def one() -> bool:
            ticket, verdict, _ = self.step()
            found[:] = [ticket]
            return verdict is Verdict.OK

        until(one, f"a round that ends OK: {self.shim.status()}")
        return found[0]

    def lost(self) -> None:
        """Step until the session is lost."""

        def gone() -> bool:
            self.step()
            return self.shim.session is None

        until(gone, "the session is lost")

    def session(self, other_than: int | None = None) -> int:
        """Return the id of the session in use, once there is one."""
        assert self.shim.wait_session(PATIENCE_S, other_than=other_than), self.shim.status()
        assert self.shim.session is not None
        return self.shim.session


@contextlib.contextmanager
def shim_with(
    path: Path, *, geometry: Geometry = SMALL, name: str = "shim", mode: Mode = Mode.ASYNC, **options: Any
) -> Iterator[Driver]:
    """Give a driver on a shim and a stream of its own."""
    options.setdefault("respawns", 1000)
    options.setdefault("deadline_ms", 10_000.0)
    with SoftStream() as stream:
        shim = Shim(
            path,
            geometry=geometry,
            model="test",
            engine=EngineIdentity(name=name, pid=os.getpid()),
            stream=stream,
            mode=mode,
            options=ShimOptions(**options),
        )
        try:
            yield Driver(shim, stream, geometry)
        finally:
            stream.fail_nth(0, 0)
            shim.close(PATIENCE_S)
