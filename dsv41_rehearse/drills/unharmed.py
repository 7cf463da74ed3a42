# SPDX-License-Identifier: Apache-2.0
"""What a bystander's session is judged by: every round drafted, the daemon the same and no larger."""

from __future__ import annotations

import time

from collections import Counter
from typing import Final

from dsv41_rehearse import proc
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Played
from dsv41_rehearse.drills.timed import Window


SETTLED_S: Final = 5.0
# Of a bystander, which is about others' harm and not about a slow machine.
TIMEOUT_MS: Final = 900.0
PATIENT: Final = ("--network-timeout-ms", str(TIMEOUT_MS))
DEADLINE_MS: Final = 1000.0
_NETWORK: Final = {"TIMEOUT", "BREAKER", "DISCONNECTED", "LOST", "EXPIRED"}


def rounds(row: Row, played: Played, timeout_ms: float = TIMEOUT_MS) -> None:
    """
    Hold every round since the first with drafts against OK. One that ran out of time may be a stalled machine's.

    ``timeout_ms``: its daemon's network timeout.
    """
    sessions = played.driven.sessions
    row.expect(len(sessions.seen) == 1, f"{len(sessions.seen)} sessions: the running one was lost")
    first_ns = sessions.seen[0].first_ok_ns
    ended = [(one.verdict, Window(one.gathered_ns, one.decided_ns)) for one in sessions.fell_back]
    ended += [(one.verdict, Window(one.gathered_ns, one.past_ns)) for one in sessions.releases]
    others = [(verdict, window) for verdict, window in ended if window.since_ns >= first_ns]
    rounds_made = sum(played.report.rounds.values())
    if {verdict for verdict, _ in others} <= _NETWORK:
        for verdict, window in others:
            # Where the machine stood still for much of the timeout, it was the machine.
            row.tardy("the running session", f"a round ended {verdict}", timeout_ms / 2, window, among=rounds_made)
    else:
        row.faults.append(f"rounds of the running session: {dict(Counter(verdict for verdict, _ in others))}")


class Held:
    """A daemon's descriptors, maps, threads and memory, to be compared with later on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = proc.footprint(pid)
        self._mib = proc.rss_private_mib(pid)

    def back(self, row: Row, may_mib: float) -> None:
        """Wait until it holds no more than before; note what stays."""
        until = time.monotonic() + SETTLED_S
        while True:
            now = proc.footprint(self._pid)
            left = now.grown(self._before)
            if not left or time.monotonic() > until:
                break
            time.sleep(0.02)
        row.leaks += [f"daemon {what}" for what in left]
        mib = proc.rss_private_mib(self._pid)
        row.expect(
            mib <= self._mib + may_mib, f"the daemon grew from {self._mib:g} to {mib:g} MiB, {may_mib:g} allowed"
        )
        row.details["daemon"] = {
            "fds": [self._before.fds, now.fds], "maps": [self._before.maps, now.maps],
            "threads": [self._before.threads, now.threads], "mib": [self._mib, mib],
        }  # fmt: skip
