# SPDX-License-Identifier: Apache-2.0
"""The engine's flight recorder, as an operator gets it. What an engine wrote there is not trusted to make sense."""

from __future__ import annotations

from typing import Any, Final

from hostflag._hostflag import lib
from hostflag.messages import RoundRecord
from hostflag.verdicts import Verdict


MAX_SPAN_NS: Final = 1 << 53  # JSON's safe integers; a round that took longer is nonsense
_NAMES: Final = {int(verdict): verdict.name.lower() for verdict in Verdict}


def record_of(record: Any) -> RoundRecord:
    """Return the RoundRecord of a ``struct hf_record``."""
    began = int(record.submitted_ns)
    timing = record.timing
    return RoundRecord(
        round=int(record.round),
        verdict=_NAMES.get(int(record.verdict), f"verdict {record.verdict}"),
        context_only=bool(record.flags & lib.HF_ROUND_CONTEXT_ONLY),
        n_requests=int(record.n_requests),
        n_rows=int(record.n_rows),
        submitted_ns=began,
        gathered_ns=_since(began, record.gathered_ns),
        seen_ns=_since(began, timing.seen_ns),
        send_ns=_since(began, timing.send_ns),
        sent_ns=_since(began, timing.sent_ns),
        replied_ns=_since(began, timing.replied_ns),
        decided_ns=_since(began, timing.decided_ns),
    )


def _since(began: int, then: Any) -> int | None:
    """Return the time between, None where it did not happen or is nonsense."""
    span = int(then) - began
    return span if then and abs(span) < MAX_SPAN_NS else None
