# SPDX-License-Identifier: Apache-2.0
"""Drill: an engine hands over a region that must not be adopted."""

from __future__ import annotations

import fcntl
import os

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drills import unharmed
from dsv41_rehearse.drills.caller import GEOMETRY, Caller
from dsv41_rehearse.drills.drill import Drill, Plan
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import Stage
from dsv41_rehearse.engine import Engine
from hostflag import messages as m
from hostflag import region as regions


EACH: Final = (2, 100)
MAY_MIB: Final = 8.0
# Bytes of struct hf_header: magic, layout version, layout hash, geometry.
_MAGIC, _VERSION, _HASH, _SIZES = 0, 8, 16, 24


def _copy(*, last: int = 0, keep: int | None = None, seal: bool = True, at: int | None = None) -> int:
    """Return a region's bytes in another memfd, ``last`` of them left out or only ``keep`` of them, with the byte ``at`` changed."""
    region = regions.create(GEOMETRY)
    whole = bytearray(os.pread(region, os.fstat(region).st_size, 0))
    os.close(region)
    if at is not None:
        whole[at] ^= 1
    fd = os.memfd_create("copy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(fd, whole[: len(whole) - last if keep is None else keep], 0)
    if seal:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def _at(base: int) -> int:
    fd = regions.create(GEOMETRY)
    regions.rebase(fd, base)
    return fd


# What is handed over, and a word of the reason it is refused for.
REGIONS: Final[dict[str, tuple[Callable[[], int], str]]] = {
    "unsealed": (lambda: _copy(seal=False), "sealed"),
    "truncated": (lambda: _copy(last=4096), "not as large"),
    "too small": (lambda: _copy(keep=64), "small"),
    "no region": (lambda: os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), "memfd"),
    "of another layout": (lambda: _copy(at=_HASH), "another layout"),
    "of another layout version": (lambda: _copy(at=_VERSION), "layout version"),
    "with another magic": (lambda: _copy(at=_MAGIC), "magic"),
    "with another geometry": (lambda: _copy(at=_SIZES), "geometry"),
    "of another geometry": (lambda: regions.create(msgspec.structs.replace(GEOMETRY, drafts=4)), "geometry"),
    "not at rest": (lambda: _at(5), "not at rest"),
}


@dataclass
class Offers:
    """The act. ``reasons``: what the daemon said, by what was handed over."""

    stage: Stage
    each: int
    row: Row
    reasons: dict[str, str] = field(default_factory=dict)

    def act(self, _engine: Engine, _drafting: ShimDrafting) -> None:
        """Hand each of them over so many times, and that of a living session."""
        held = unharmed.Held(self.stage.newest_daemon.pid)
        for _ in range(self.each):
            for what, (make, word) in REGIONS.items():
                fd = make()
                self._offer(what, fd, 0, word)
                os.close(fd)
            self._owned()
        held.back(self.row, MAY_MIB)

    def _owned(self) -> None:
        """A region whose owner, this daemon, lives and serves it."""
        with Caller(self.stage.stack.socket) as owner:
            if not isinstance(owner.ready("owner"), m.Ready):
                self.row.faults.append("no session to begin with")
                return
            self._offer("of a living session", owner.region_fd, 0, "still has this region")
            self.row.expect(not owner.hung_up, "the owner's session was ended")

    def _offer(self, what: str, fd: int, base: int, word: str) -> None:
        with Caller(self.stage.stack.socket) as caller:
            if not isinstance(caller.greet("thief"), m.Welcome):
                self.row.faults.append(f"{what}: no WELCOME")
                return
            caller.channel.send(m.Attach(base=base), [fd])
            refusal = caller.refusal()
        if refusal is None:
            self.row.faults.append(f"a region {what}: not refused")
        elif refusal.code != "attach" or word not in refusal.reason:
            self.row.faults.append(f"a region {what}: refused with {refusal.code}: {refusal.reason}")
        else:
            self.reasons[what] = refusal.reason


def _adoption_refused(plan: Plan) -> Row:
    row = Row("adoption-refused", "")
    with Stage(plan=plan, requests=1, deadline_ms=unharmed.DEADLINE_MS, daemon_flags=unharmed.PATIENT) as stage:
        offers = Offers(stage, plan.count(*EACH), row)
        played = stage.run(offers.act)
    row.happened = f"{len(offers.reasons)} kinds of regions handed over, {offers.each} times each"
    row.details["reasons"] = offers.reasons
    unharmed.rounds(row, played)
    return played.fill(row)


DRILLS: Final = (
    Drill(
        name="adoption-refused",
        fault="an engine hands over a region that is unsealed, truncated, too small, of another layout or geometry, not at rest, or still a "
        "living session's",
        bound="refused with the reason; the owner's session and all others unharmed, nothing kept",
        run=_adoption_refused,
        quick_s=4,
        group="socket",
    ),
)
