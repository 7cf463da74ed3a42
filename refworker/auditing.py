# SPDX-License-Identifier: Apache-2.0
"""A round as a line of the worker's audit: what came, and what went back."""

from __future__ import annotations

from hostflag.audit import RequestAudit, RoundAudit, drafts_crc, rows_crc
from hostflag.wire import Reply, Round


def line(message: Round, reply: Reply | None) -> RoundAudit:
    """Return the audit line of a round. ``reply``: None where no ids went back."""
    requests = []
    for index, request in enumerate(message.requests):
        first, end = request.first_row, request.first_row + request.rows
        positions = message.positions[first:end]
        data = message.rows[first * message.row_bytes : end * message.row_bytes]
        ids = None
        if reply is not None and request.draft:
            ids = drafts_crc(reply.ids[index * message.drafts : (index + 1) * message.drafts])
        requests.append(
            RequestAudit(
                slot=request.request_slot,
                generation=request.generation,
                first=positions[0] if request.rows else -1,
                rows=request.rows,
                rows_crc=rows_crc(positions, message.tokens[first:end], data),
                draft=request.draft,
                drafts_crc=ids,
            )
        )
    return RoundAudit(
        session=f"{message.session:016x}", round=message.round, context_only=message.context_only, requests=requests
    )
