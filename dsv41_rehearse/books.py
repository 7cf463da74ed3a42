# SPDX-License-Identifier: Apache-2.0
"""The books of a run: a ledger and an audit file for each of its sessions."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import final

from dsv41_rehearse.ledger import Ledger, SettledStep
from dsv41_rehearse.scenario import Scenario
from hostflag.audit import AuditWriter, engine_file


@final
class Books:
    """
    Steps are settled in order, so one session's ledger is open at a time.

    ``directory`` None: no audit, only the mock's check, where it is asked for. ``sessions``: those that made rounds.
    """

    def __init__(self, scenario: Scenario, directory: Path | None, *, check_mock: bool) -> None:
        self._scenario = scenario
        self._directory = directory
        self._check_mock = check_mock
        self._ledger: Ledger | None = None
        self._checked = 0
        self._wrong = 0
        self.sessions: list[int] = []

    def __enter__(self) -> Books:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def drafts_checked(self) -> int:
        """Drafts held against the mock's rule."""
        return self._checked + (self._ledger.drafts_checked if self._ledger else 0)

    @property
    def wrong_drafts(self) -> int:
        """Those that were not by that rule."""
        return self._wrong + (self._ledger.wrong_drafts if self._ledger else 0)

    def settle(self, step: SettledStep) -> None:
        """Book a step. Without a session there is nothing to book."""
        if step.session is None or (self._directory is None and not self._check_mock):
            return
        if self._ledger is None or self._ledger.session != step.session:
            self._begin(step.session)
        assert self._ledger is not None
        self._ledger.settle(step)

    def _begin(self, session: int) -> None:
        self.close()
        writer = None if self._directory is None else AuditWriter(engine_file(self._directory, session))
        # A new session knows nothing of its predecessor's rows: neither does a new ledger.
        self._ledger = Ledger(session, self._scenario, writer, check_mock=self._check_mock)
        self.sessions.append(session)

    def close(self) -> None:
        """Close the ledger that is open."""
        if self._ledger is not None:
            self._checked, self._wrong = self.drafts_checked, self.wrong_drafts
            if self._ledger.writer is not None:
                self._ledger.writer.close()
            self._ledger = None
