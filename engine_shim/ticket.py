# SPDX-License-Identifier: Apache-2.0
"""What a submit did."""

from __future__ import annotations

from typing import NamedTuple

from hostflag.verdicts import Skip


class Ticket(NamedTuple):
    """
    ``round``: the drafting round, or None: a target-only step, ``skip`` says why (NONE where nobody asked for drafts).

    ``context_rounds``: context-only rounds, before the drafting round or instead of it; ``first_round`` is the first of them
    all. ``rows``: shipped by them. ``rows_deferred``: prefill rows that wait for the ring now, in all.
    """

    round: int | None
    skip: Skip
    context_rounds: int
    first_round: int
    rows: int
    rows_deferred: int

    @property
    def rounds(self) -> list[int]:
        """Every round of this submit, in order; the drafting round is the last."""
        count = self.context_rounds + (self.round is not None)
        return [(self.first_round + index) & 0xFFFF_FFFF for index in range(count)]
