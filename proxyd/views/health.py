# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon does what it is there for, with the reasons where it does not. Decided from what is known, without asking anybody."""

from __future__ import annotations

import os

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

import msgspec

from hostflag.version import VERSION
from proxyd.views.http import Content


MOST_REASONS: Final = 20  # sessions may all have the same trouble
MOST_LETTERS: Final = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFacts:
    """One session. ``trouble``: why it gets no drafts, None where it does. ``stalled``: what of it stands still."""

    name: str
    trouble: str | None
    stalled: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """
    ``draining``: why, None where it serves. ``answers``: whether a worker answers while no session asks one, None: not known yet.

    ``faults``: of endpoints that could not be asked, why. ``notes``: what others have to tell, and no fault.
    """

    draining: str | None
    endpoints: Sequence[str]
    answers: bool | None
    sessions: Sequence[SessionFacts]
    faults: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Health:
    """``reasons``: why it is not healthy, none where it is. ``notes``: what is worth knowing and no fault."""

    reasons: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        return not self.reasons


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The body of /healthz."""

    status: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    sessions: int
    pid: int
    version: str


def assess(facts: Facts) -> Health:
    """Return how the daemon is."""
    reasons = [f"draining: {facts.draining}"] if facts.draining is not None else []
    reasons += [f"{each.name}: {each.stalled}" for each in facts.sessions if each.stalled]
    notes = list(facts.notes)
    troubles = [f"{each.name}: {each.trouble}" for each in facts.sessions if each.trouble]
    if not facts.sessions:
        notes.append("no engine is connected")
        reasons += _without_sessions(facts)
    elif len(troubles) == len(facts.sessions):
        reasons += troubles
    else:
        notes += troubles
    return Health(_few(reasons), _few(notes))


def page(health: Health, sessions: int) -> Content:
    """Return what /healthz says: 200, or 503 with the reasons."""
    body = Page(
        status="ok" if health.healthy else "unhealthy",
        reasons=health.reasons,
        notes=health.notes,
        sessions=sessions,
        pid=os.getpid(),
        version=VERSION,
    )
    status = HTTPStatus.OK if health.healthy else HTTPStatus.SERVICE_UNAVAILABLE
    return Content("application/json", msgspec.json.encode(body) + b"\n", status)


def _without_sessions(facts: Facts) -> list[str]:
    if facts.answers is None:
        return [f"not known yet whether a worker answers at {', '.join(facts.endpoints)}"]
    if facts.answers:
        return []
    reasons = [f"no link to {each}: {facts.faults[each]}" for each in facts.endpoints if each in facts.faults]
    silent = ", ".join(each for each in facts.endpoints if each not in facts.faults)
    return [*reasons, f"no worker answers at {silent}: start one there, or name another"] if silent else reasons


def _few(texts: Sequence[str]) -> tuple[str, ...]:
    kept = [each if len(each) <= MOST_LETTERS else each[:MOST_LETTERS] + "..." for each in texts[:MOST_REASONS]]
    return (*kept, f"and {len(texts) - MOST_REASONS} more") if len(texts) > MOST_REASONS else tuple(kept)
