# SPDX-License-Identifier: Apache-2.0
"""Drill: whatever knocks at the engine socket."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from dataclasses import dataclass, field
from typing import Any, Final

from dsv41_rehearse import proc
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drills import unharmed
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage
from dsv41_rehearse.engine import Engine


CONNECTIONS: Final = (1_000, 10_000)
# Of all connections, the share of each kind, and the codes it may be refused with.
KINDS: Final[dict[str, tuple[float, set[str]]]] = {
    "gone": (0.30, {"left"}),
    "junk": (0.25, {"message"}),
    "version": (0.15, {"protocol"}),
    "layout": (0.04, {"layout"}),
    "nested": (0.02, {"message"}),
    "fds": (0.02, {"fds", "message"}),
    "silent": (0.20, {"busy", "timeout"}),
    "uid": (0.02, {"permission"}),
}
ALLOWED: Final = "1"  # any user but the caller's and nobody
MAY_MIB: Final = 16.0
KNOCK_S: Final = 600.0


@dataclass
class Knocks:
    """The act. ``answers``: by kind, how often each code. ``most_mib``: what the daemon held at most."""

    stage: Stage
    count: int
    row: Row
    answers: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    most_mib: float = 0.0
    most_fds: int = 0
    skipped: list[str] = field(default_factory=list)

    def act(self, _engine: Engine, _drafting: ShimDrafting) -> None:
        """Knock; the first few of each kind load what is loaded once."""
        for kind in KINDS:
            if kind != "silent":  # those take their time
                self._knock(kind, 2)
        self.answers.clear()
        daemon = self.stage.newest_daemon.pid
        held = unharmed.Held(daemon)
        self.most_mib, before_fds = proc.rss_private_mib(daemon), proc.footprint(daemon).fds
        before_mib = self.most_mib
        for kind, (share, _) in KINDS.items():
            self._knock(kind, max(3, round(self.count * share)))
        held.back(self.row, MAY_MIB)
        self.row.expect(
            self.most_mib <= before_mib + MAY_MIB, f"the daemon grew from {before_mib:g} to {self.most_mib:g} MiB"
        )
        self.row.details["most fds"] = [before_fds, self.most_fds]

    def _knock(self, kind: str, count: int) -> None:
        if kind == "uid" and os.geteuid() != 0:
            self.skipped = ["a uid that is not allowed (only root can take another one)"]
            return
        command = [
            sys.executable,
            "-m",
            "dsv41_rehearse.drills.knocking",
            str(self.stage.stack.socket),
            kind,
            str(count),
        ]
        daemon = self.stage.newest_daemon.pid
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as knocking:
            try:
                while knocking.poll() is None:
                    self.most_mib = max(self.most_mib, proc.rss_private_mib(daemon))
                    self.most_fds = max(self.most_fds, proc.footprint(daemon).fds)
                    try:
                        knocking.wait(0.05)
                    except subprocess.TimeoutExpired:
                        continue
            except BaseException:
                knocking.kill()
                raise
            said = knocking.stdout.read() if knocking.stdout else ""
        if knocking.returncode != 0:
            self.row.faults.append(f"{kind}: whoever knocked ended with {knocking.returncode}")
            return
        made: dict[str, Any] = json.loads(said)
        self.answers[kind], self.seconds[kind] = made["answers"], made["seconds"]


def _handshake_door(plan: Plan) -> Row:
    row = Row("handshake-door", "")
    flags = (*unharmed.PATIENT, "--socket-mode", "0666", "--allowed-users", ALLOWED)
    with Stage(plan=plan, requests=1, daemon=False, daemon_flags=flags, deadline_ms=unharmed.DEADLINE_MS) as stage:
        stage.stack.directory.chmod(0o755)  # for who is not allowed to be turned away by the daemon itself
        stage.start_daemon()
        knocks = Knocks(stage, plan.count(*CONNECTIONS), row)
        played = stage.run(knocks.act)
    total = sum(sum(codes.values()) for codes in knocks.answers.values())
    row.happened = f"{total} connections of {len(knocks.answers)} kinds beside a running session"
    row.happened += "".join(f"; not done: {what}" for what in knocks.skipped)
    for kind, codes in knocks.answers.items():
        row.expect(set(codes) <= KINDS[kind][1], f"{kind}: answered {codes}, not {' or '.join(sorted(KINDS[kind][1]))}")
    row.details |= {"answers": knocks.answers, "seconds": knocks.seconds, "most_mib": knocks.most_mib}
    unharmed.rounds(row, played)
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="handshake-door",
        fault="10,000 connections at the engine socket: random bytes, wrong version or layout, deep nesting, 253 descriptors in a message, silent "
        "ones, gone ones, a uid that is not allowed",
        bound="each refused with its code, or closed; the daemon grows by ≤ 16 MiB and holds no more than before; another session's rounds all "
        "drafted",
        run=_handshake_door,
        quick_s=10,
        group="socket",
    ),
)
