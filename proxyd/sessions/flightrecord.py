# SPDX-License-Identifier: Apache-2.0
"""What a session that was lost had done last, as one line of the log: what people need first, before anybody asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostflag.region import Word


if TYPE_CHECKING:
    from hostflag.messages import RoundRecord
    from proxyd.sessions.pulse import Pulse


ROUNDS: Final = 16  # so that a line has two kilobytes at the most
WORDS: Final = (Word.SUBMITTED, Word.GATHERED, Word.RELEASED, Word.RETIRED, Word.CONSUMED)


def flight_record(pulse: Pulse) -> dict[str, object]:
    """
    Return the region's counters and the last finished rounds, the oldest first; times in us since the round was submitted.

    Rounds that were in flight are in no record yet: the counters tell of them.
    """
    return {
        "words": {word.name.lower(): pulse.word(word) for word in WORDS},
        "rounds": [_short(record) for record in pulse.records(ROUNDS)],
    }


def _short(record: RoundRecord) -> str:
    what = f"{record.round} {record.verdict}{'*' if record.context_only else ''}, {record.n_requests} requests, {record.n_rows} rows"
    steps = {
        "gathered": record.gathered_ns,
        "sent": record.sent_ns,
        "replied": record.replied_ns,
        "decided": record.decided_ns,
    }
    return what + "".join(f", {name} {ns / 1e3:.0f}" for name, ns in steps.items() if ns is not None)
