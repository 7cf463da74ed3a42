# SPDX-License-Identifier: Apache-2.0
"""What spin is to find: sound designs, broken rules, and broken rules that another rule covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


Expected = Literal["sound", "covered", "found"]


@dataclass(frozen=True, slots=True)
class Run:
    """
    A model with flags. ``expected``: "sound" and "covered" search every state and find nothing; "found" finds a violation.

    ``rounds``: R1, R2 of two_sessions; R of handoff and 0.
    """

    model: Literal["handoff", "two_sessions"]
    expected: Expected
    flags: tuple[str, ...]
    rounds: tuple[int, int]

    @property
    def defines(self) -> list[str]:
        """The options for spin."""
        first, second = self.rounds
        bounds = [f"R1={first}", f"R2={second}"] if self.model == "two_sessions" else [f"R={first}"]
        return [f"-D{define}" for define in (*self.flags, *bounds)]

    @property
    def mutations(self) -> list[str]:
        """The rules it breaks."""
        return [flag for flag in self.flags if flag.startswith("M_")]

    @property
    def name(self) -> str:
        """What it is called in tables."""
        rounds = "+".join(str(number) for number in self.rounds if number)
        return f"{self.model} {' '.join(self.flags) or '(plain)'}, {rounds} rounds"


def _one(expected: Expected, flags: str, rounds: int) -> Run:
    return Run("handoff", expected, tuple(flags.split()), (rounds, 0))


def _two(expected: Expected, flags: str, first: int, second: int) -> Run:
    return Run("two_sessions", expected, tuple(flags.split()), (first, second))


QUICK: Final = (
    # The longest first, so that two cores end together.
    _one("sound", "SLEEP", 1),
    _two("sound", "ADOPT FAIL", 1, 1),
    _one("sound", "", 3),
    _two("sound", "ADOPT", 2, 1),
    _two("sound", "ADOPT CTX", 1, 1),
    _two("sound", "NEWREG", 1, 1),
    _two("sound", "ADOPT NODHELP", 1, 1),
    _two("sound", "ADOPT RING", 1, 1),
    _two("sound", "ADOPT REOFFER", 1, 1),
    _one("sound", "FAIL", 1),
    _one("sound", "CTX", 1),
    _one("sound", "QN=5", 1),
    _one("sound", "CLOCK CTX", 2),
    # Broken, and yet nothing happens: another rule covers it. README.md says which.
    _two("covered", "ADOPT M_RETFIRST", 1, 1),
    _two("covered", "ADOPT M_NOWDJOIN M_WDCHECK", 1, 1),
    _two("covered", "ADOPT FAIL M_NOPOISON M_NOREST", 1, 1),
    _two("covered", "ADOPT M_NOZERO", 1, 1),
    # Broken, and found.
    _one("found", "M_S3", 3),
    _one("found", "CTX CLOCK M_ONECLOCK", 2),
    _one("found", "SLEEP M_BELL", 1),
    _one("found", "SLEEP M_REST", 1),
    _one("found", "SLEEP M_RUNG", 1),
    _one("found", "FAIL M_HALFSTOP", 1),
    _one("found", "M_STOPEARLY", 1),
    _one("found", "QN=5 M_STOPORDER", 1),
    _one("found", "M_TWICE", 2),
    _one("found", "M_NOCAS", 1),
    _one("found", "M_PLAINREL", 2),
    _one("found", "M_LATEREPLY", 1),
    _one("found", "CTX M_NOLASTLOOK", 2),
    _two("found", "ADOPT M_WFB", 3, 1),
    _two("found", "ADOPT CTX NODHELP M_WFB M_WFBCTX", 3, 1),
    _two("found", "ADOPT M_TWICE", 2, 1),
    _two("found", "ADOPT M_UNGATHERED", 2, 1),
    _two("found", "ADOPT M_STOPEARLY", 2, 1),
    _two("found", "ADOPT M_STOPORDER", 2, 1),
    _two("found", "ADOPT M_LOSTFIRST", 2, 1),
    _two("found", "ADOPT M_NOWDJOIN", 1, 1),
    _two("found", "ADOPT M_NOWDJOIN M_WDCHECK M_NOBRACKET", 1, 1),
    _two("found", "ADOPT M_NOWDJOIN M_WDCHECK M_NOQUIESCE M_NOCHECK", 1, 1),
    _two("found", "ADOPT M_NOWDJOIN M_WDCHECK M_ZERO", 1, 1),
    _two("found", "ADOPT M_NOTDEAD", 1, 1),
    _two("found", "ADOPT M_EOF", 1, 1),
    _two("found", "ADOPT M_CLOSEFIRST", 1, 1),
    _two("found", "ADOPT M_NOZERO M_NOCHECK", 1, 1),
    _two("found", "ADOPT M_NORETBASE", 2, 1),
    _two("found", "ADOPT REOFFER M_REOFFER", 1, 1),
    _two("found", "ADOPT M_PLAINREL", 2, 1),
    _two("found", "ADOPT M_NORETIRE", 3, 1),
    _two("found", "ADOPT M_NOCONSUME M_NOSETTLE", 3, 1),
    _two("found", "ADOPT CTX M_NOSETTLE", 3, 1),
    _two("found", "ADOPT RING M_RINGCON", 3, 1),
    _two("found", "ADOPT M_NOCAS", 2, 1),
    _two("found", "ADOPT M_LATEREPLY", 2, 1),
    _two("found", "ADOPT M_RETEARLY", 2, 1),
    _two("found", "ADOPT FAIL M_HALFSTOP", 1, 1),
    _two("found", "ADOPT FAIL M_HALFGOON", 2, 1),
    _two("found", "ADOPT FAIL M_NOPOISON M_NOREST M_NOCHECK", 1, 1),
    _two("found", "ADOPT CTX M_NOLASTLOOK", 2, 1),
)

LONG: Final = (
    _two("sound", "ADOPT", 3, 2),
    _two("sound", "ADOPT FAIL", 2, 2),
    _two("sound", "ADOPT CTX", 2, 1),
    _two("sound", "ADOPT RING", 3, 1),
    _two("sound", "ADOPT REOFFER", 2, 1),
    _two("sound", "NEWREG", 2, 2),
    _two("sound", "ADOPT NEWREG FAIL", 1, 1),
    _two("sound", "ADOPT RING CTX", 2, 1),
    _two("sound", "ADOPT FAIL CTX", 2, 1),
    _one("sound", "", 5),
    _one("sound", "CTX", 3),
    _one("sound", "FAIL", 3),
    _one("sound", "CTX CLOCK", 2),
)
