# SPDX-License-Identifier: Apache-2.0
"""What a submit did."""

from __future__ import annotations

import struct

from typing import Any, Final, NamedTuple

from engine_shim._engine import ffi
from hostflag.verdicts import Skip


_FIELDS: Final = [name for name, _ in ffi.typeof("struct hfe_ticket").fields]
_UNPACK: Final = struct.Struct(f"{len(_FIELDS)}I").unpack_from
_SKIPS: Final = tuple(sorted(Skip))
assert _FIELDS == ["round", "drafting", "skip", "context_rounds", "first_round", "rows", "rows_deferred"]


class RoundRef(NamedTuple):
    """A round of a session. The number alone may be that of another session's round too."""

    session: int
    round: int


class Ticket(NamedTuple):
    """
    ``round``: the drafting round, or None: a target-only step, ``skip`` says why (NONE where nobody asked for drafts).

    ``context_rounds``: context-only rounds, before the drafting round or instead of it; ``first_round`` is the first of them
    all. ``rows``: shipped by them. ``rows_deferred``: prefill rows that wait for the ring now, in all. ``session``: whose rounds
    these are; None where there was no session.
    """

    round: int | None
    skip: Skip
    context_rounds: int
    first_round: int
    rows: int
    rows_deferred: int
    session: int | None = None

    @property
    def ref(self) -> RoundRef | None:
        """The drafting round."""
        return None if self.round is None or self.session is None else RoundRef(self.session, self.round)

    @property
    def refs(self) -> list[RoundRef]:
        """Every round of this submit, in order; the drafting round is the last."""
        return [] if self.session is None else [RoundRef(self.session, number) for number in self.rounds]

    @property
    def rounds(self) -> list[int]:
        """Every round of this submit, in order; the drafting round is the last."""
        count = self.context_rounds + (self.round is not None)
        return [(self.first_round + index) & 0xFFFF_FFFF for index in range(count)]


def ticket_of(c_ticket: Any, session: int | None) -> Ticket:
    """
    Return the Ticket that a buffer over a ``struct hfe_ticket`` holds.

    On the submit path, and there with cold caches: one unpack and one bare tuple touch much less than seven attributes.
    """
    round_, drafting, skip, context_rounds, first_round, rows, deferred = _UNPACK(c_ticket)
    return tuple.__new__(
        Ticket, (round_ if drafting else None, _SKIPS[skip], context_rounds, first_round, rows, deferred, session)
    )
