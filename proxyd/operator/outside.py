# SPDX-License-Identifier: Apache-2.0
"""A daemon that says nothing, looked at from outside: its process and its regions, through /proc."""

from __future__ import annotations

import contextlib
import os
import time

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from hostflag.messages import RoundRecord
from hostflag.region import RegionFault, View, Word, check
from hostflag.verdicts import Phase


REGION_LINK: Final = "/memfd:dsv41-region"
BEAT_S: Final = 0.3  # a loop that runs beats more often
_STATES: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting in the kernel",
    "T": "stopped (SIGSTOP, or a debugger let go of it): `kill -CONT` lets it go on",
    "t": "held by a debugger",
    "Z": "dead, not yet waited for",
    "X": "dead",
}


class RegionLook(msgspec.Struct, frozen=True, kw_only=True):
    """One region. ``in_flight``: rounds that are submitted and not retired; ``words`` by name; ``records`` where they were asked for."""

    region: str
    phase: str
    beating: bool
    in_flight: int
    words: dict[str, int]
    records: tuple[RoundRecord, ...] = ()


class Look(msgspec.Struct, frozen=True, kw_only=True, tag="SILENT"):
    """
    What can be seen of a silent daemon.

    ``lacks``: the right that is missing to see more, None where everything could be seen.
    """

    pid: int
    state: str
    command: str | None
    regions: tuple[RegionLook, ...]
    lacks: str | None


def look(pid: int, records: int = 0) -> Look:
    """Look at process ``pid``; of each region take the newest ``records`` rounds. Never raises: what cannot be seen is said."""
    if pid == 0:
        return _nothing(pid, "in a process namespace that this one cannot see", "being in its namespace, or the host's")
    process = Path(f"/proc/{pid}")
    try:
        # The name in brackets may hold anything, so from the last bracket on.
        letter = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        command = (process / "comm").read_text(errors="replace").strip()
    except (OSError, IndexError):
        return _nothing(pid, "gone: whoever inherited its socket says nothing", None)
    regions: tuple[RegionLook, ...] = ()
    lacks = None
    try:
        with contextlib.ExitStack() as stack:
            regions = _looks([stack.enter_context(_opened(fd)) for fd in _region_fds(process)], records)
    except PermissionError:
        owner = process.stat().st_uid
        lacks = (
            f"reading /proc/{pid}/fd: that takes its own uid {owner} or root, and this is uid {os.geteuid()}; use sudo"
        )
    except (OSError, RegionFault) as fault:
        lacks = f"its regions cannot be read: {fault}"
    return Look(pid=pid, state=_STATES.get(letter, letter), command=command, regions=regions, lacks=lacks)


def _nothing(pid: int, state: str, lacks: str | None) -> Look:
    return Look(pid=pid, state=state, command=None, regions=(), lacks=lacks)


def _region_fds(process: Path) -> list[Path]:
    links = sorted((process / "fd").iterdir(), key=lambda each: int(each.name))
    return [link for link in links if str(link.readlink()).startswith(REGION_LINK)]


@contextlib.contextmanager
def _opened(link: Path) -> Iterator[tuple[str, View]]:
    fd = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with View(fd) as view:
            yield check(fd).region_id, view
    finally:
        os.close(fd)


def _looks(views: list[tuple[str, View]], records: int) -> tuple[RegionLook, ...]:
    before = [view.word(Word.BEAT) for _, view in views]
    if views:
        time.sleep(BEAT_S)
    return tuple(_look_at(region, view, beat, records) for (region, view), beat in zip(views, before, strict=True))


def _look_at(region: str, view: View, beat: int, records: int) -> RegionLook:
    words = {word.name.lower(): view.word(word) for word in Word}
    return RegionLook(
        region=region,
        phase=Phase(words["phase"]).name.lower() if words["phase"] in set(Phase) else str(words["phase"]),
        beating=words["beat"] != beat,
        in_flight=(words["submitted"] - words["retired"]) % 2**32,
        words=words,
        records=view.records(records) if records else (),
    )
