# SPDX-License-Identifier: Apache-2.0
"""The ledger says what was meant to be sent, and would notice if something else was."""

from __future__ import annotations

import zlib

from pathlib import Path

import numpy as np
import pytest

from dsv41_rehearse.device import Outcome, RowSource
from dsv41_rehearse.ledger import MOCK_STEP, Ledger, SettledStep, SubmittedRound
from dsv41_rehearse.replay import Request
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.scheduler import Item
from dsv41_rehearse.text import load
from engine_shim import RoundTable, ShippedRequest
from hostflag.audit import AuditWriter, RoundAudit, read, rows_crc


SLOT, GENERATION = 3, 2
K = 5


@pytest.fixture
def scenario() -> Scenario:
    return Scenario(text=load(), row_bytes=96, drafts=K)


@pytest.fixture
def request_() -> Request:
    return Request(uid=9, text_at=100, length=500, prompt=200, arrival=0)


def prefill(request: Request, first: int, rows: int, end: int) -> Item:
    last = first + rows == end
    return Item(request, SLOT, GENERATION, 0, rows, True, last, last, first, end - first - rows, end)


def decode(request: Request) -> Item:
    return Item(request, SLOT, GENERATION, 0, K + 1, False, False, True, -1, 0, 200)


def a_round(
    number: int, rows: int, *, all_valid: bool, verdict: str = "OK", context_only: bool = False
) -> SubmittedRound:
    shipped = ShippedRequest(SLOT, GENERATION, rows, draft=not context_only, all_valid=all_valid)
    return SubmittedRound(RoundTable(number, context_only, (shipped,)), 1, verdict)


def expected(scenario: Scenario, request: Request, first: int, rows: int) -> str:
    positions = np.arange(first, first + rows, dtype=np.int64)
    at = request.text_at + first
    tokens = np.frombuffer(scenario.text.tokens[at : at + rows], np.uint8).astype(np.int32)
    data = RowSource(scenario).rows(request.uid, positions, tokens)
    return rows_crc(positions.tobytes(), tokens.tobytes(), data.tobytes())


def booked(tmp_path: Path, scenario: Scenario, *steps: SettledStep) -> list[RoundAudit]:
    path = tmp_path / "engine.jsonl"
    with AuditWriter(path) as writer:
        ledger = Ledger(1, scenario, writer)
        for step in steps:
            ledger.settle(step)
    return list(read(path))


def test_only_the_window_of_a_prompt_split_over_rounds(tmp_path: Path, scenario: Scenario, request_: Request) -> None:
    first = SettledStep(
        [prefill(request_, 0, 100, 200)], [Outcome(0, [], 0)], [b""], [a_round(1, 28, all_valid=True)], 1
    )
    rounds = [a_round(2, 60, all_valid=True, context_only=True), a_round(3, 40, all_valid=True)]
    second = SettledStep([prefill(request_, 100, 100, 200)], [Outcome(100, [7], 0)], [bytes(8 * K)], rounds, 1)
    lines = booked(tmp_path, scenario, first, second)
    assert [(line.round, line.requests[0].first, line.requests[0].rows) for line in lines] == [
        (1, 72, 28), (2, 100, 60), (3, 160, 40),
    ]  # fmt: skip
    for line in lines:
        [one] = line.requests
        assert one.rows_crc == expected(scenario, request_, one.first, one.rows)
    assert lines[1].requests[0].drafts_crc is None
    assert lines[2].requests[0].drafts_crc is not None


def test_rejected_rows_of_a_decode_do_not_count(tmp_path: Path, scenario: Scenario, request_: Request) -> None:
    step = SettledStep(
        [decode(request_)], [Outcome(250, [1, 2, 3], 3)], [bytes(8 * K)], [a_round(1, 6, all_valid=False)], 1
    )
    [line] = booked(tmp_path, scenario, step)
    assert (line.requests[0].first, line.requests[0].rows) == (250, 3)
    assert line.requests[0].rows_crc == expected(scenario, request_, 250, 3)


@pytest.mark.parametrize("verdict", ["EXPIRED", "LOST", "TIMEOUT", "DISCONNECTED"])
def test_drafts_that_were_not_answers_are_not_booked(
    tmp_path: Path, scenario: Scenario, request_: Request, verdict: str
) -> None:
    rounds = [a_round(1, 6, all_valid=False, verdict=verdict)]
    step = SettledStep([decode(request_)], [Outcome(250, [1], 5)], [bytes(8 * K)], rounds, 1)
    [line] = booked(tmp_path, scenario, step)
    assert (line.verdict, line.requests[0].drafts_crc) == (verdict, None)


@pytest.mark.parametrize(("change", "wrong"), [(0, 0), (1, 1)])
def test_the_mocks_drafts_are_checked_bit_by_bit(
    scenario: Scenario, request_: Request, change: int, wrong: int
) -> None:
    at = request_.text_at + 250
    newest = RowSource(scenario).rows(
        request_.uid, np.array([250], np.int64), np.array([scenario.text.tokens[at]], np.int32)
    )
    ids = (zlib.crc32(newest.tobytes()) + MOCK_STEP * np.arange(K, dtype=np.int64)) % scenario.vocab
    ids[2] ^= change
    ledger = Ledger(1, scenario, check_mock=True)
    rounds = [a_round(1, 6, all_valid=False)]
    ledger.settle(SettledStep([decode(request_)], [Outcome(250, [1], 5)], [ids.tobytes()], rounds, 1))
    assert (ledger.drafts_checked, ledger.wrong_drafts) == (K, wrong)
