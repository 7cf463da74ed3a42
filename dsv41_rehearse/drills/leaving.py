# SPDX-License-Identifier: Apache-2.0
"""
``python -m dsv41_rehearse.drills.leaving SOCKET HOW``: an engine that leaves with something under way.

``close``: with a round parked. ``stop``: the same, once its daemon has been stopped. ``stuck``: behind work that never ends.
``exit``, ``raise``: the interpreter ends and nobody closed anything.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

from pathlib import Path
from typing import Any, Final

from dsv41_rehearse.drills.caller import GEOMETRY
from engine_shim import Shim, ShimOptions, SoftStream, StreamStuck
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Verdict


SESSION_S: Final = 20.0
FIRST_S: Final = 10.0
CLOSE_S: Final = 3.0
NEVER_NS: Final = 10**13
NAMES: Final = {how: f"leaving-{how}" for how in ("close", "stop", "stuck", "exit", "raise")}
_MEMORY: Final = ctypes.create_string_buffer(1 << 16)


class Leaver:
    """One shim with a round at a time, all of whose arrays are the same zeros."""

    def __init__(self, path: Path, how: str) -> None:
        self.stream = SoftStream()
        identity = EngineIdentity(name=NAMES[how], pid=os.getpid())
        options = ShimOptions(respawns=1_000, deadline_ms=1_000.0)
        self.shim = Shim(path, geometry=GEOMETRY, model="drill", engine=identity, stream=self.stream, options=options)
        self.shim.first_session(SESSION_S)
        at, width = ctypes.addressof(_MEMORY), GEOMETRY.row_bytes
        self._batch = self.shim.batch()
        self._batch.n_requests = 1
        self._batch.set_request(0, slot=0, generation=1, first_row=0, rows=1, draft=True)
        self._batch.set_sources([(at, width, width)])
        self._batch.set_arrays(
            positions=at, tokens=at, num_sampled=at, num_rejected=at, last_sampled=at, next_prefill=at,
            drafts_out=at + (1 << 15),
        )  # fmt: skip

    def first(self) -> None:
        """Submit until a round ends OK: the worker is there."""
        until = time.monotonic() + FIRST_S
        while True:
            ticket = self.shim.submit(self._batch)
            self.stream.wait(self.stream.marker(), FIRST_S)
            if ticket.ref and self.shim.verdict(ticket.ref) is Verdict.OK:
                return
            if time.monotonic() > until:
                raise TimeoutError(f"no drafts: {self.shim.status()}")
            time.sleep(0.002)

    def park(self) -> None:
        """Submit a round and wait until the stream is parked for it."""
        self.shim.submit(self._batch)
        time.sleep(0.02)

    def close(self) -> dict[str, Any]:
        """Close; return how long that took, and what it said."""
        began_ns = time.monotonic_ns()
        said = ""
        try:
            self.shim.close(CLOSE_S)
        except StreamStuck as fault:
            said = str(fault)
        took_ms = (time.monotonic_ns() - began_ns) / 1e6
        maps = Path("/proc/self/maps").read_text().count("memfd:dsv41-region")
        return {"close_ms": round(took_ms, 1), "since_ns": began_ns, "said": said, "maps": maps}


def main() -> int:
    """Do it. ``there`` is said, and a line awaited, before whatever the drill does to the daemon."""
    path, how = Path(sys.argv[1]), sys.argv[2]
    leaver = Leaver(path, how)
    leaver.first()
    if how == "stuck":
        leaver.stream.work(NEVER_NS)
    sys.stdout.write("there\n")
    sys.stdout.flush()
    sys.stdin.readline()
    leaver.park()
    if how == "raise":
        raise SystemExit(3)
    if how == "exit":
        return 0
    sys.stdout.write(json.dumps(leaver.close()) + "\n")
    sys.stdout.flush()
    if how != "stuck":
        leaver.stream.close(CLOSE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
