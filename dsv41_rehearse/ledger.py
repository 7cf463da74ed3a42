# SPDX-License-Identifier: Apache-2.0
"""
The ledger: what the engine meant to send in each round and what it got back, from its own sources.

Rows are computed anew from request, position and token, never read from the region; drafts are what the device holds for
the next step. The worker writes the same lines from what reached it: comparing the two checks the whole way.
"""

from __future__ import annotations

import zlib

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dsv41_rehearse.device import I32, I64, Outcome, RowSource
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.scheduler import Item
from engine_shim import RoundRef, RoundTable, ShippedRequest
from hostflag.audit import AuditWriter, RequestAudit, RoundAudit, drafts_crc, rows_crc
from hostflag.verdicts import Verdict


MOCK_STEP: Final = 40_503  # the mock drafter's ids: (crc32 of the newest row + i * this) % vocab
NO_ROWS_CRC: Final = "00000000"


@dataclass(frozen=True)
class SubmittedRound:
    """One round of a step as it was submitted, and the name of its verdict (OPEN where that was not known in time)."""

    table: RoundTable
    session: int
    verdict: str = Verdict.OPEN.name

    @property
    def ref(self) -> RoundRef:
        """Its name: numbers alone can be those of another session's rounds."""
        return RoundRef(self.session, self.table.round)


@dataclass(frozen=True)
class SettledStep:
    """
    A step of which everything is known. ``drafts``: int64 ids [k] a request, as the device holds them.

    ``session``: that it was submitted to. ``left_out``: its prompt rows are in no round, now or later.
    """

    items: Sequence[Item]
    outcomes: Sequence[Outcome]
    drafts: Sequence[bytes]
    rounds: Sequence[SubmittedRound]
    session: int | None
    left_out: bool = False


@dataclass
class _Account:
    """Who holds a slot, and the positions of its prompt that were handed over but not yet seen in a round."""

    generation: int
    uid: int
    text_at: int
    prefilled: deque[int] = field(default_factory=deque)


@dataclass
class Ledger:
    """Keeps the books of one session. ``writer`` None: only the mock's check, where it is asked for."""

    session: int
    scenario: Scenario
    writer: AuditWriter | None = None
    check_mock: bool = False
    drafts_checked: int = 0
    wrong_drafts: int = 0
    _accounts: dict[int, _Account] = field(default_factory=dict)  # by slot
    _source: RowSource = field(init=False)
    _text: I32 = field(init=False)

    def __post_init__(self) -> None:
        self._source = RowSource(self.scenario)
        self._text = np.frombuffer(self.scenario.text.tokens, np.uint8).astype(np.int32)

    def settle(self, step: SettledStep) -> None:
        """Write one line for each of the step's rounds."""
        if self.writer is None and not self.check_mock:
            return
        indexes: dict[int, int] = {}
        for index, item in enumerate(step.items):
            indexes[item.slot] = index
            self._hand_over(item, left_out=step.left_out)
        for submitted in step.rounds:
            requests = [self._request(step, submitted, shipped, indexes) for shipped in submitted.table.requests]
            if self.writer is not None:
                self.writer.write(
                    RoundAudit(
                        session=f"{self.session:016x}",
                        round=submitted.table.round,
                        context_only=submitted.table.context_only,
                        verdict=submitted.verdict,
                        requests=requests,
                    )
                )

    def _hand_over(self, item: Item, *, left_out: bool) -> None:
        account = self._accounts.get(item.slot)
        if account is None or account.generation != item.generation:
            account = _Account(item.generation, item.request.uid, item.request.text_at)
            self._accounts[item.slot] = account
        if item.prefill and not left_out:
            # Only the newest window of a prompt matters: earlier rows are never sent.
            start = max(item.first, item.prefill_end - self.scenario.window)
            account.prefilled.extend(range(start, item.first + item.rows))

    def _request(
        self, step: SettledStep, submitted: SubmittedRound, shipped: ShippedRequest, indexes: dict[int, int]
    ) -> RequestAudit:
        account = self._accounts[shipped.slot]
        assert account.generation == shipped.generation, "rows of a request whose slot has changed hands"
        index = indexes.get(shipped.slot)
        if shipped.all_valid:
            positions: I64 = np.array([account.prefilled.popleft() for _ in range(shipped.rows)], np.int64)
        else:
            assert index is not None
            outcome = step.outcomes[index]
            positions = np.arange(outcome.position, outcome.position + len(outcome.tokens), dtype=np.int64)
        crc, newest_crc = self._rows(account, positions)
        used: bytes | None = None
        if shipped.draft and index is not None and submitted.verdict == "OK":
            used = step.drafts[index]
            if self.check_mock and len(positions):
                self._check_mock(used, newest_crc)
        return RequestAudit(
            slot=shipped.slot,
            generation=shipped.generation,
            first=int(positions[0]) if len(positions) else -1,
            rows=len(positions),
            rows_crc=crc,
            draft=shipped.draft,
            drafts_crc=None if used is None else drafts_crc(used),
        )

    def _rows(self, account: _Account, positions: I64) -> tuple[str, int]:
        """Return the checksum of these rows, and the crc32 of the newest row alone."""
        if not len(positions):
            return NO_ROWS_CRC, 0
        at = account.text_at + positions
        tokens: I32 = np.where(at < len(self._text), self._text[np.minimum(at, len(self._text) - 1)], 0).astype(
            np.int32
        )
        rows = self._source.rows(account.uid, positions, tokens)
        newest = zlib.crc32(rows[-self.scenario.row_bytes :].data) if self.check_mock else 0
        return rows_crc(positions.data, tokens.data, rows.data), newest

    def _check_mock(self, used: bytes, newest_crc: int) -> None:
        ids = np.frombuffer(used, np.int64)
        wanted = (newest_crc + MOCK_STEP * np.arange(len(ids), dtype=np.int64)) % self.scenario.vocab
        self.drafts_checked += len(ids)
        self.wrong_drafts += int((ids != wanted).sum())
