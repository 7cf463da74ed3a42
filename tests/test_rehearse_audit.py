# SPDX-License-Identifier: Apache-2.0
"""Comparing audits: what is equal passes, and each thing that can be wrong is found and counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dsv41_rehearse.__main__ import main
from dsv41_rehearse.audit_compare import AuditError, compare
from hostflag.audit import AuditWriter, RequestAudit, RoundAudit


SESSION = "00000000000000aa"
K = 5


def request(
    slot: int, *, first: int = 10, rows: int = 3, crc: str = "11111111", drafts: str | None = "22222222"
) -> RequestAudit:
    return RequestAudit(
        slot=slot, generation=1, first=first, rows=rows, rows_crc=crc, draft=drafts is not None, drafts_crc=drafts
    )


def a_round(number: int, *requests: RequestAudit, verdict: str | None = None, context_only: bool = False) -> RoundAudit:
    return RoundAudit(
        session=SESSION, round=number, context_only=context_only, requests=list(requests), verdict=verdict
    )


def write(directory: Path, engine: list[RoundAudit], worker: list[RoundAudit]) -> None:
    for name, lines in (("engine-00000000000000aa", engine), ("worker-1", worker)):
        with AuditWriter(directory / f"{name}.jsonl") as writer:
            for line in lines:
                writer.write(line)


def test_equal_audits_are_identical(tmp_path: Path) -> None:
    requests = request(0), request(1, rows=1)
    write(tmp_path, [a_round(1, *requests, verdict="OK")], [a_round(1, *requests)])
    found = compare(tmp_path, K)
    assert found.identical
    assert (found.rows_checked, found.drafts_checked) == (4, 2 * K)
    assert (found.wrong_rows, found.wrong_drafts, found.missing) == (0, 0, 0)
    assert main(["compare", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("at_worker", "wrong_rows", "wrong_drafts"),
    [
        (request(0, crc="99999999"), 3, 0),
        (request(0, first=11), 3, 0),
        (request(0, rows=2), 3, 0),
        (request(0, drafts="99999999"), 0, K),
        (request(0, drafts=None), 0, K),
        (request(2), 3 + 3, K),  # ours is not there, and one is that was not sent
    ],
    ids=["bytes", "position", "rows", "drafts", "no drafts", "slot"],
)
def test_what_differs_is_counted(tmp_path: Path, at_worker: RequestAudit, wrong_rows: int, wrong_drafts: int) -> None:
    write(tmp_path, [a_round(1, request(0), verdict="OK")], [a_round(1, at_worker)])
    found = compare(tmp_path, K)
    assert (found.wrong_rows, found.wrong_drafts) == (wrong_rows, wrong_drafts)
    assert not found.identical
    assert found.examples
    assert main(["compare", str(tmp_path)]) == 1


def test_a_round_that_ended_ok_must_be_at_the_worker(tmp_path: Path) -> None:
    write(tmp_path, [a_round(1, request(0), verdict="OK")], [])
    assert compare(tmp_path, K).missing == 1
    assert main(["compare", str(tmp_path)]) == 1


@pytest.mark.parametrize("verdict", ["EXPIRED", "TIMEOUT", "LOST", "DISCONNECTED", "OPEN"])
def test_a_round_that_did_not_end_ok_may_be_missing(tmp_path: Path, verdict: str) -> None:
    write(tmp_path, [a_round(1, request(0, drafts=None), verdict=verdict)], [])
    found = compare(tmp_path, K)
    assert found.identical
    assert found.unmatched == 1


def test_its_rows_must_be_right_where_it_is_there(tmp_path: Path) -> None:
    ours = a_round(1, request(0, drafts=None), verdict="EXPIRED")
    write(tmp_path, [ours], [a_round(1, request(0, crc="99999999"))])
    assert compare(tmp_path, K).wrong_rows == 3


def test_late_drafts_of_a_round_that_expired_are_not_wrong(tmp_path: Path) -> None:
    write(tmp_path, [a_round(1, request(0, drafts=None), verdict="EXPIRED")], [a_round(1, request(0))])
    assert compare(tmp_path, K).identical


def test_the_same_round_of_another_session_is_another_round(tmp_path: Path) -> None:
    other = msgspec.structs.replace(a_round(1, request(0)), session="00000000000000bb")
    write(tmp_path, [a_round(1, request(0), verdict="OK")], [other])
    assert compare(tmp_path, K).missing == 1


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00 this is no audit\n")


def unknown_field(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"round"', b'"rounds"'))


def test_a_worker_that_was_killed_loses_its_tail_only(tmp_path: Path) -> None:
    lines = [a_round(number, request(0), verdict="OK") for number in (1, 2)]
    write(tmp_path, lines, lines)
    cut_off(tmp_path / "worker-1.jsonl")
    found = compare(tmp_path, K)
    assert (found.missing, found.wrong_rows) == (1, 0)


@pytest.mark.parametrize("spoil", [garbage, unknown_field])
def test_no_audit_is_said_so(tmp_path: Path, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, [a_round(1, request(0), verdict="OK")], [a_round(1, request(0))])
    spoil(tmp_path / "worker-1.jsonl")
    with pytest.raises(AuditError, match="worker-1"):
        compare(tmp_path, K)
    assert main(["compare", str(tmp_path)]) == 2
    assert "worker-1.jsonl is no audit" in capsys.readouterr().err.replace("\n", " ")


def test_an_empty_directory_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="no engine-"):
        compare(tmp_path, K)
    assert main(["compare", str(tmp_path / "nothing")]) == 2
