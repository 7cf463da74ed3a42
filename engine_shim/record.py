# SPDX-License-Identifier: Apache-2.0
"""A round, looked at: what it shipped, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from engine_shim._engine import lib
from hostflag.verdicts import Verdict


_VERDICTS: Final = {int(verdict): verdict for verdict in Verdict}


@dataclass(frozen=True, slots=True)
class ShippedRequest:
    """One request of a round. ``rows``: shipped; unless ``all_valid``, the last num_rejected of them do not count."""

    slot: int
    generation: int
    rows: int
    draft: bool
    all_valid: bool


@dataclass(frozen=True, slots=True)
class RoundTable:
    """What a round shipped."""

    round: int
    context_only: bool
    requests: tuple[ShippedRequest, ...]


@dataclass(frozen=True, slots=True)
class RoundTiming:
    """When the daemon did what, CLOCK_MONOTONIC in ns; 0 where it did not happen."""

    seen_ns: int
    send_ns: int
    sent_ns: int
    replied_ns: int
    decided_ns: int


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """
    A finished round, from the flight recorder. ``gathered_ns`` is 0 where the stream has no clock.

    ``verdict``: LOST where the record says none: a daemon can write in the region what it is not to write.
    """

    round: int
    verdict: Verdict
    context_only: bool
    n_requests: int
    n_rows: int
    submitted_ns: int
    gathered_ns: int
    timing: RoundTiming


def table_of(header: Any, requests: Any) -> RoundTable:
    """Return the RoundTable of a ``struct hf_round`` and its ``struct hf_request`` array."""
    return RoundTable(
        round=int(header.round),
        context_only=bool(header.flags & lib.HF_ROUND_CONTEXT_ONLY),
        requests=tuple(
            ShippedRequest(
                slot=int(request.request_slot),
                generation=int(request.generation),
                rows=int(request.rows),
                draft=bool(request.flags & lib.HF_REQUEST_DRAFT),
                all_valid=bool(request.flags & lib.HF_REQUEST_ALL_VALID),
            )
            for request in requests[0 : header.n_requests]
        ),
    )


def record_of(record: Any) -> RoundRecord:
    """Return the RoundRecord of a ``struct hf_record``."""
    timing = record.timing
    return RoundRecord(
        round=int(record.round),
        verdict=_VERDICTS.get(int(record.verdict), Verdict.LOST),
        context_only=bool(record.flags & lib.HF_ROUND_CONTEXT_ONLY),
        n_requests=int(record.n_requests),
        n_rows=int(record.n_rows),
        submitted_ns=int(record.submitted_ns),
        gathered_ns=int(record.gathered_ns),
        timing=RoundTiming(
            seen_ns=int(timing.seen_ns),
            send_ns=int(timing.send_ns),
            sent_ns=int(timing.sent_ns),
            replied_ns=int(timing.replied_ns),
            decided_ns=int(timing.decided_ns),
        ),
    )
