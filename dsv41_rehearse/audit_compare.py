# SPDX-License-Identifier: Apache-2.0
"""
Compare what engines meant to send and used with what workers got and answered, line by line.

A round that ended OK must be at the worker, with the same rows and the same drafts. A round with any other verdict may
or may not have reached it; where it did, its rows must be the same. Nothing else counts as right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from hostflag.audit import RequestAudit, RoundAudit, engine_file, read


MAX_EXAMPLES: Final = 5


class AuditError(Exception):
    """The directory holds no audit that can be compared; the message says why."""


@dataclass
class Comparison:
    """Counts of rows and drafts; ``examples`` names the first things that were wrong."""

    sessions: int = 0
    rounds: int = 0
    rounds_ok: int = 0
    unmatched: int = 0  # neither OK nor at the worker: lost on the way, as their verdicts say
    missing: int = 0  # OK, but the worker knows nothing of them
    rows_checked: int = 0
    wrong_rows: int = 0
    drafts_checked: int = 0
    wrong_drafts: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.missing or self.wrong_rows or self.wrong_drafts)

    def wrong(self, what: str) -> None:
        """Keep an example."""
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(what)


def compare(directory: Path, drafts: int, sessions: Sequence[int] | None = None) -> Comparison:
    """
    Compare the audit files of a directory, or of these sessions there. ``drafts``: k, for counting.

    Raises AuditError where files are missing or are no audit.
    """
    found = Comparison()
    if sessions is None:
        engines = sorted(directory.glob("engine-*.jsonl"))
    else:
        engines = [engine_file(directory, session) for session in sessions]
    if not engines:
        raise AuditError(f"no engine-*.jsonl in {directory}: run with --audit {directory} first")
    worker: dict[tuple[str, int], list[RoundAudit]] = {}
    for line in _lines(sorted(directory.glob("worker-*.jsonl"))):
        worker.setdefault((line.session, line.round), []).append(line)
    for line in _lines(engines):
        # The counter can pass the same round twice in a session only after 2**32 rounds; the first is compared first.
        theirs = worker.get((line.session, line.round))
        compare_round(line, theirs.pop(0) if theirs else None, drafts, found)
    found.sessions = len(engines)
    return found


def compare_round(ours: RoundAudit, theirs: RoundAudit | None, drafts: int, found: Comparison) -> None:
    """Compare one round and count into ``found``."""
    where = f"session {ours.session} round {ours.round}"
    found.rounds += 1
    found.rounds_ok += int(ours.verdict == "OK")
    if theirs is None:
        if ours.verdict == "OK":
            found.missing += 1
            found.wrong(f"{where}: OK for the engine, but the worker has no such round")
        else:
            found.unmatched += 1
        return
    answers = {(request.slot, request.generation): request for request in theirs.requests}
    for request in ours.requests:
        at_worker = answers.pop((request.slot, request.generation), None)
        compare_rows(where, request, at_worker, found)
        compare_drafts(where, request, at_worker, drafts, found)
    for extra in answers.values():
        found.wrong_rows += extra.rows
        found.wrong(f"{where}: the worker got slot {extra.slot} generation {extra.generation}, which was not sent")


def compare_rows(where: str, ours: RequestAudit, theirs: RequestAudit | None, found: Comparison) -> None:
    """Rows: same place, same number, same bytes."""
    found.rows_checked += ours.rows
    got = None if theirs is None else (theirs.first, theirs.rows, theirs.rows_crc)
    if got != (ours.first, ours.rows, ours.rows_crc):
        found.wrong_rows += max(1, ours.rows)
        found.wrong(f"{where} slot {ours.slot}: rows sent {(ours.first, ours.rows, ours.rows_crc)}, got {got}")


def compare_drafts(where: str, ours: RequestAudit, theirs: RequestAudit | None, drafts: int, found: Comparison) -> None:
    """Drafts that were used (under OK) must be those that the worker answered."""
    if ours.drafts_crc is None:
        return
    found.drafts_checked += drafts
    answered = None if theirs is None else theirs.drafts_crc
    if answered != ours.drafts_crc:
        found.wrong_drafts += drafts
        found.wrong(f"{where} slot {ours.slot}: drafts used {ours.drafts_crc}, answered {answered}")


def _lines(paths: list[Path]) -> Iterator[RoundAudit]:
    for path in paths:
        try:
            yield from read(path)
        except OSError as error:
            raise AuditError(f"cannot read {path}: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise AuditError(f"{path} is no audit file: {error}") from error
