# SPDX-License-Identifier: Apache-2.0
"""The flight recorder, read by somebody who is not the engine: the newest rounds, in order, whatever an engine wrote there."""

from __future__ import annotations

import mmap
import os

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from hostflag import messages as m
from hostflag import region as regions
from hostflag._hostflag import ffi, lib
from hostflag.geometry import to_c
from hostflag.region import View
from hostflag.verdicts import Verdict


GEOMETRY = m.Geometry(slots=4, max_requests=4, state_slots=8, row_bytes=1024, drafts=5, vocab=256, ring_bytes=1 << 20)


class Recorder:
    """An engine's hand on the recorder of a region."""

    def __init__(self) -> None:
        self.fd = regions.create(GEOMETRY)
        self._map = mmap.mmap(self.fd, 0)
        layout = ffi.new("struct hf_layout *")
        assert lib.hf_layout_of(to_c(GEOMETRY), layout) == 0
        self._at = int(layout.stats)
        # struct hf_stats: its arrays of counters, then records, then the records themselves.
        counters = lib.HF_VERDICT_MAX + lib.HF_SKIP_MAX + 4
        self._count_at = self._at + counters * 8
        self._records_at = self._count_at + 8

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)

    def write(self, number: int, **fields: Any) -> None:
        """Write the ``number``-th record, without counting it."""
        record = bytes(ffi.buffer(ffi.new("struct hf_record *", fields)))
        at = self._records_at + number % lib.HF_RECORDS * len(record)
        self._map[at : at + len(record)] = record

    def count(self, number: int) -> None:
        self._map[self._count_at : self._count_at + 8] = number.to_bytes(8, "little")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    made.close()


def fill(recorder: Recorder, rounds: int) -> None:
    for number in range(rounds):
        recorder.write(number, round=number + 1, verdict=int(Verdict.OK), n_rows=3, submitted_ns=1000 + number)
        recorder.count(number + 1)


@pytest.mark.parametrize(
    ("rounds", "asked", "first", "count"),
    [(0, 10, 0, 0), (3, 10, 1, 3), (3, 2, 2, 2), (256, 256, 2, 255), (700, 1000, 446, 255), (700, 4, 697, 4)],
)
def test_the_newest_rounds_in_order(recorder: Recorder, rounds: int, asked: int, first: int, count: int) -> None:
    """The oldest of 256 is left out: the engine may be writing over it."""
    fill(recorder, rounds)
    with View(recorder.fd) as view:
        assert [each.round for each in view.records(asked)] == list(range(first, first + count))


def test_times_are_since_submitted(recorder: Recorder) -> None:
    timing = {"seen_ns": 1100, "send_ns": 0, "decided_ns": 900}
    recorder.write(0, round=7, verdict=int(Verdict.TIMEOUT), submitted_ns=1000, gathered_ns=1050, timing=timing)
    recorder.count(1)
    with View(recorder.fd) as view:
        (record,) = view.records(1)
    assert (record.round, record.verdict, record.submitted_ns) == (7, "timeout", 1000)
    assert (record.gathered_ns, record.seen_ns, record.send_ns, record.decided_ns) == (50, 100, None, -100)


@pytest.mark.parametrize("count", [1, 300, 2**32, 2**63, 2**64 - 1])
def test_nonsense_fits_a_message(recorder: Recorder, count: int) -> None:
    """An engine may write what it likes: it is shown, or left out, and never more than a packet takes."""
    most = 2**64 - 1
    words = dict.fromkeys(("round", "verdict", "n_requests", "n_rows", "flags"), 2**32 - 1)
    timing = dict.fromkeys(("seen_ns", "send_ns", "sent_ns", "replied_ns", "decided_ns"), most)
    for number in range(lib.HF_RECORDS):
        recorder.write(number, **words, submitted_ns=most - 2**53 + 2, gathered_ns=most, timing=timing)
    recorder.count(count)
    with View(recorder.fd) as view:
        records = view.records(lib.HF_RECORDS)
    dump = m.Dump(session="0" * 16, engine="e" * 256, rank=0, records=records)
    payload = msgspec.json.encode(dump)
    assert len(payload) <= m.MAX_MESSAGE_BYTES
    assert msgspec.json.decode(payload, type=m.Dump) == dump
    assert all(record.verdict == f"verdict {2**32 - 1}" for record in records)
