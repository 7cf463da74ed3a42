# SPDX-License-Identifier: Apache-2.0
"""
The audit: engine and worker each write one line a round, what they sent and what they got.

Comparing the two files shows that every row and every draft arrived, bit for bit.
"""

from __future__ import annotations

import os
import time
import zlib

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec


FLUSH_S: Final = 1.0
FLUSH_BYTES: Final = 1 << 20


class RequestAudit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    One request of a round. ``first``: position of its first row, -1 without rows. ``rows``: valid rows.

    ``rows_crc``: crc32, 8 hex digits, of int64 positions, then int32 tokens, then row bytes. ``drafts_crc``: of the int64
    ids; None where none were wanted or used.
    """

    slot: int
    generation: int
    first: int
    rows: int
    rows_crc: str
    draft: bool
    drafts_crc: str | None = None


class RoundAudit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One round of a session (16 hex digits). ``verdict``: the engine's, None in the worker's lines."""

    session: str
    round: int
    context_only: bool
    requests: Sequence[RequestAudit]
    verdict: str | None = None


Buffer = bytes | bytearray | memoryview


def rows_crc(positions: Buffer, tokens: Buffer, rows: Buffer) -> str:
    """Return the checksum of a request's rows: int64 positions, int32 tokens, row bytes, all little-endian."""
    return f"{zlib.crc32(rows, zlib.crc32(tokens, zlib.crc32(positions))):08x}"


def drafts_crc(ids: Buffer) -> str:
    """Return the checksum of a request's drafts: int64 ids, little-endian."""
    return f"{zlib.crc32(ids):08x}"


class AuditWriter:
    """Appends rounds to a file. Flushed once a second and at close: a process killed hard loses at most that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=FLUSH_BYTES)
        self._flushed = time.monotonic()
        self._encoder = msgspec.json.Encoder()

    def __enter__(self) -> AuditWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, line: RoundAudit) -> None:
        """Append one round."""
        self._file.write(self._encoder.encode(line) + b"\n")
        if time.monotonic() - self._flushed >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Hand what is buffered to the kernel; for loops that fall idle."""
        self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flush and close. Closing twice is harmless."""
        self._file.close()


def engine_file(directory: Path, session: int) -> Path:
    """Return where an engine session writes its audit."""
    return directory / f"engine-{session:016x}.jsonl"


def worker_file(directory: Path, pid: int | None = None) -> Path:
    """Return where a worker process writes its audit."""
    return directory / f"worker-{os.getpid() if pid is None else pid}.jsonl"


def read(path: Path) -> Iterator[RoundAudit]:
    """
    Yield the rounds of an audit file. A last line without its end (the writer was killed) is left out.

    Raises msgspec.DecodeError on a line that is no round.
    """
    decoder = msgspec.json.Decoder(RoundAudit)
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decoder.decode(line)
