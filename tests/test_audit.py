# SPDX-License-Identifier: Apache-2.0
"""The audit's lines: written, read back, and read where the writer was killed."""

from __future__ import annotations

import struct
import zlib

from pathlib import Path

import msgspec
import pytest

from hostflag import audit


LINE = audit.RoundAudit(
    session="00000000000000ff",
    round=7,
    context_only=False,
    verdict="OK",
    requests=[
        audit.RequestAudit(
            slot=1, generation=2, first=3, rows=4, rows_crc="0badcafe", draft=True, drafts_crc="deadbeef"
        )
    ],
)


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = audit.engine_file(tmp_path, 255)
    with audit.AuditWriter(path) as writer:
        writer.write(LINE)
        writer.write(msgspec.structs.replace(LINE, round=8, verdict=None))

    lines = list(audit.read(path))
    assert path.name == "engine-00000000000000ff.jsonl"
    assert lines == [LINE, msgspec.structs.replace(LINE, round=8, verdict=None)]


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = audit.worker_file(tmp_path, 42)
    with audit.AuditWriter(path) as writer:
        writer.write(LINE)
    with path.open("ab") as file:
        file.write(path.read_bytes()[:20])

    assert path.name == "worker-42.jsonl"
    assert list(audit.read(path)) == [LINE]


def test_a_line_that_is_no_round_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "worker-1.jsonl"
    path.write_bytes(b'{"session":"x"}\n')
    with pytest.raises(msgspec.DecodeError):
        list(audit.read(path))


def test_checksums_are_of_positions_tokens_and_bytes_in_that_order() -> None:
    positions, tokens, rows = struct.pack("<2q", 5, 6), struct.pack("<2i", 7, 8), b"ab" * 8

    assert audit.rows_crc(positions, tokens, rows) == f"{zlib.crc32(positions + tokens + rows):08x}"
    assert audit.rows_crc(b"", b"", b"") == "00000000"
    assert audit.drafts_crc(struct.pack("<q", 9)) == f"{zlib.crc32(struct.pack('<q', 9)):08x}"
