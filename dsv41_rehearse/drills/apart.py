# SPDX-License-Identifier: Apache-2.0
"""
The engine stand-in as a process of its own, for what is done to the engine itself.

It runs until its drill says so, and shows meanwhile, in a file that both map, how far it is.
"""

from __future__ import annotations

import json
import mmap
import struct
import sys
import time

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, final

from dsv41_rehearse.audit_compare import Comparison, compare
from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.drill import Drill as ActThread
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.stage import LEFT_OVER, Stage
from dsv41_rehearse.drive import Drive, drive
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.outcome import report
from dsv41_rehearse.report import write
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.stack import Child
from dsv41_rehearse.text import load


POLL_S: Final = 0.01
END_S: Final = 60.0
FIRST_S: Final = 30.0
_SHOWN: Final = struct.Struct("=QQQQ")  # leave, drafting rounds that ended OK, newest session, steps


@final
class Board:
    """What engine and drill show each other."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_SHOWN.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SHOWN.size)

    def _get(self, index: int) -> int:
        return int(_SHOWN.unpack_from(self._map, 0)[index])

    def _set(self, index: int, value: int) -> None:
        struct.pack_into("=Q", self._map, 8 * index, value)

    def leave(self) -> None:
        """The engine is to come to its end."""
        self._set(0, 1)

    @property
    def leaving(self) -> bool:
        """Whether it was told so."""
        return self._get(0) != 0

    @property
    def drafted(self) -> int:
        """Drafting rounds that ended OK so far."""
        return self._get(1)

    @property
    def session(self) -> int:
        """The newest session's id, 0 before the first."""
        return self._get(2)

    @property
    def steps(self) -> int:
        """Steps that were launched."""
        return self._get(3)

    def show(self, drafted: int, session: int, steps: int) -> None:
        """The engine's part."""
        self._set(1, drafted)
        self._set(2, session)
        self._set(3, steps)


class Apart:
    """
    An engine of a stage, in its own process. ``board``: how far it is.

    ``failing``: a build with failpoints for it. ``socket``: of another daemon than the stage's.
    """

    def __init__(
        self, stage: Stage, *, name: str = "engine", failing: str | None = None, socket: Path | None = None
    ) -> None:
        self._stage, self._report = stage, stage.stack.directory / f"{name}.json"
        board = stage.stack.directory / f"{name}.board"
        board.unlink(missing_ok=True)
        self.board = Board(board)
        asked = {
            "socket": str(socket or stage.stack.socket), "board": str(board), "report": str(self._report),
            "audit": str(stage.audit_directory), "respawns": stage.respawns, "scenario": stage.scenario_options(),
        }  # fmt: skip
        module, launcher = "dsv41_rehearse.drills.apart", "dsv41_rehearse.drills.failing"
        if failing is None:
            self.child: Child = stage.stack.start(name, module, [json.dumps(asked)])
        else:
            self.child = stage.stack.start(name, launcher, [failing, module, json.dumps(asked)])

    def wait(self, what: Callable[[], bool], timeout_s: float = FIRST_S) -> bool:
        """Wait until something holds. False: not in time, or the engine has ended."""
        until = time.monotonic() + timeout_s
        while not what():
            if time.monotonic() > until or self.child.process.poll() is not None:
                return False
            time.sleep(0.002)
        return True

    def wait_drafted(self, rounds: int = 1, timeout_s: float = FIRST_S) -> float | None:
        """Wait for so many more rounds with drafts. Returns after how many ms the first of them was there, None: not in time."""
        began, before = time.monotonic(), self.board.drafted
        if not self.wait(lambda: self.board.drafted > before, timeout_s):
            return None
        first_ms = (time.monotonic() - began) * 1e3
        return first_ms if self.wait(lambda: self.board.drafted >= before + rounds, timeout_s) else None

    def end(self) -> dict[str, Any]:
        """Bring it to its end; return its report. Raises TimeoutExpired where it does not come, OSError where it left none."""
        self.board.leave()
        self.child.process.wait(END_S)
        made: dict[str, Any] = json.loads(self._report.read_text())
        return made

    def fill(self, row: Row, made: dict[str, Any]) -> Row:
        """End the stage's processes, compare what engine and worker saw, note all that in a row."""
        row.leaks += self._stage.stack.end_processes()
        compared = compare(self._stage.audit_directory, made["scenario"]["drafts"])
        row.wrong_drafts += max(made["wrong_drafts"], compared.wrong_drafts)
        row.leaks += made["left_over"]
        row.target_only = made["target_only_steps"]
        row.faults += [fault for fault in made["faults"] if not fault.startswith(LEFT_OVER)]
        row.faults += _not_identical(compared)
        row.details |= {
            "rounds": made["rounds"], "skipped": {why: n for why, n in made["skipped"].items() if n}, "steps": made["steps"],
            "losses": {why: n for why, n in made["losses"].items() if n}, "drafts_checked": compared.drafts_checked,
        }  # fmt: skip
        return row


def _not_identical(compared: Comparison) -> list[str]:
    found = [f"{compared.wrong_rows} rows are not at the worker as they were sent"] if compared.wrong_rows else []
    found += [f"{compared.missing} rounds ended OK that the worker knows nothing of"] if compared.missing else []
    return [*found, *compared.examples]


def main() -> int:
    """Run the engine that the one argument (JSON) asks for; 0 where it came to its end and left its report."""
    asked = json.loads(sys.argv[1])
    board = Board(Path(asked["board"]))
    sessions: list[int] = []

    def act(_engine: Engine, drafting: ShimDrafting) -> None:
        while not board.leaving and not drafting.sessions.over:
            newest = drafting.sessions.newest_id
            if newest is not None and [newest] != sessions:
                sessions[:] = [newest]
            time.sleep(POLL_S)

    def watch(engine: Engine) -> None:
        board.show(engine.tally.rounds["OK"], sessions[0] if sessions else 0, engine.tally.steps)

    with ActThread() as thread:
        thread.plan(act)
        how = Drive(
            scenario=Scenario(text=load(), **asked["scenario"]), socket=Path(asked["socket"]), audit=Path(asked["audit"]),
            check_mock=True, respawns=asked["respawns"], drill=thread,
        )  # fmt: skip
        driven = drive(how, watch)
    made = asdict(report(how, driven, None, [], expect_ok=False))
    releases = driven.sessions.releases
    # For how long each round was parked that the watchdog ended, and since when.
    made["held"] = [((one.past_ns - one.gathered_ns) / 1e6, one.gathered_ns) for one in releases]
    write(Path(asked["report"]), made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
