# SPDX-License-Identifier: Apache-2.0
"""Drill: an engine leaves with a round parked, without a close, or with a stream that never moves."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drills import unharmed
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.leaving import CLOSE_S, NAMES
from dsv41_rehearse.drills.logs import events
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage
from dsv41_rehearse.drills.timed import Timed, longest_ms
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.stack import Child


TIMES: Final = (1, 20)
WORKER_MS: Final = 40.0
THERE_S: Final = 60.0
END_S: Final = 60.0
# A parked round has its deadline at most; then goodbye is said, and a daemon that stands still is not waited for for ever.
CLOSE_MS: Final = {"close": 1_000.0, "stop": CLOSE_S * 1e3 + 500.0, "stuck": CLOSE_S * 1e3 + 500.0}
STATUS: Final = {"raise": 3}
GONE_S: Final = 5.0
GONE_MS: Final = 1_000.0


@dataclass
class Leaves:
    """The act. ``closed``: by how it left, what its close took and said. ``gone``: from its end to the daemon's having let go."""

    stage: Stage
    times: int
    row: Row
    other: Child
    socket: Path
    closed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    gone: list[Timed] = field(default_factory=list)

    def act(self, _engine: Engine, _drafting: ShimDrafting) -> None:
        """Each of them so many times."""
        self._leave("exit")  # what the daemon loads once is loaded
        self.gone.clear()
        held = unharmed.Held(self.stage.newest_daemon.pid)
        for _ in range(self.times):
            for how in NAMES:
                self._leave(how)
        held.back(self.row, 12.0)

    def _leave(self, how: str) -> None:
        # One that is stopped is nobody else's.
        daemon, socket = (
            (self.other, self.socket) if how == "stop" else (self.stage.newest_daemon, self.stage.stack.socket)
        )
        known = len(events(daemon, "session over", engine=NAMES[how]))
        command = [sys.executable, "-m", "dsv41_rehearse.drills.leaving", str(socket), how]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as engine:
            assert engine.stdout
            there = engine.stdout.readline() == "there\n"
            if how == "stop":
                daemon.stop()
            try:
                out, err = engine.communicate("go on\n", timeout=END_S)
            except subprocess.TimeoutExpired:
                engine.kill()
                self.row.faults.append(f"{how}: it did not end within {END_S:g} s")
                return
            finally:
                if how == "stop":
                    daemon.resume()
        ended_ns = time.monotonic_ns()
        self._judge(how, there=there, status=engine.returncode, out=out, err=err)
        while len(events(daemon, "session over", engine=NAMES[how])) <= known:
            if time.monotonic_ns() > ended_ns + GONE_S * 1e9:
                self.row.faults.append(f"{how}: the daemon did not notice its end")
                return
            time.sleep(0.002)
        if how != "stuck":  # it says goodbye after its last word
            self.gone.append(Timed.between(ended_ns, time.monotonic_ns()))

    def _judge(self, how: str, *, there: bool, status: int, out: str, err: str) -> None:
        row = self.row
        row.expect(there, f"{how}: it had no drafts to begin with")
        row.expect(status == STATUS.get(how, 0), f"{how}: it ended with status {status}: {err.strip()[-200:]}")
        row.expect(not err.strip(), f"{how}: it said {err.strip()[-200:]!r}")
        if how not in CLOSE_MS or not out.strip():
            row.expect(how not in CLOSE_MS, f"{how}: it said nothing of its close")
            return
        made: dict[str, Any] = json.loads(out)
        self.closed.setdefault(how, []).append(made)
        row.bound(f"{how}: the close", made["close_ms"], CLOSE_MS[how], since_ns=made["since_ns"])
        if how == "stuck":
            row.expect("stream" in made["said"], f"{how}: the close said {made['said']!r}")
            row.expect(made["maps"] > 0, f"{how}: memory that the stream may still touch was unmapped")
        else:
            row.expect(not made["said"], f"{how}: the close said {made['said']!r}")
            row.expect(made["maps"] == 0, f"{how}: {made['maps']} maps of regions were left")


def _shim_close(plan: Plan) -> Row:
    row = Row("shim-close", "")
    with Stage(
        plan=plan, requests=1, worker_ms=WORKER_MS, deadline_ms=unharmed.DEADLINE_MS, daemon_flags=unharmed.PATIENT
    ) as stage:
        socket = stage.stack.directory / "other.sock"
        other = stage.start_daemon(name="other", socket=socket)
        leaves = Leaves(stage, plan.count(*TIMES), row, other, socket)
        played = stage.run(leaves.act)
    unharmed.rounds(row, played)
    row.happened = "left with a round parked, behind work that never ends, and without a close"
    closes = {how: [one["close_ms"] for one in made] for how, made in leaves.closed.items()}
    row.released_ms = max((ms for how in closes for ms in closes[how] if how == "close"), default=None)
    row.detected_ms = longest_ms(leaves.gone)
    row.expect(bool(leaves.gone), "it is not known when the daemon let go")
    row.bounds("the daemon has let go", leaves.gone, GONE_MS)
    row.details |= {"close_ms": closes, "stuck said": [one["said"] for one in leaves.closed.get("stuck", [])]}
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="shim-close",
        fault="an engine closes with a round parked, with its daemon stopped, behind work that never ends; or its interpreter ends without a "
        "close, or by an exception",
        bound="the close takes ≤ its timeout and 0.5 s; a stuck stream is said (StreamStuck) and keeps its memory; the interpreter ends as it was "
        "to; the daemon lets go ≤ 1 s after",
        run=_shim_close,
        quick_s=12,
        group="engine",
    ),
)
