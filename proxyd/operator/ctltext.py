# SPDX-License-Identifier: Apache-2.0
"""What dsv41-proxyctl prints: for people, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from hostflag.messages import Dump, RoundRecord, Status
from proxyd.operator.outside import Look, RegionLook


_COLUMNS: Final = ("round", "verdict", "requests", "rows", "gather", "seen", "send", "network", "own", "total")


def status_text(status: Status) -> str:
    """Return a running daemon's status for people."""
    doing = "draining" if status.draining else "serving"
    health = "healthy" if status.healthy else "NOT HEALTHY"
    lines = [f"dsv41-proxyd {status.version}, pid {status.pid}, {doing}, {health}, up {status.seconds:.0f} s"]
    lines += [f"reason   {each}" for each in status.reasons]
    lines += [f"note     {each}" for each in status.notes]
    lines += [f"worker   {each}{'  in use' if each == status.endpoint else ''}" for each in status.endpoints]
    for each in status.sessions:
        worker = f"worker {each.worker}" if each.worker else "no worker yet"
        lines.append(
            f"session  {each.session}  {each.engine} rank {each.rank} pid {each.pid}: link {each.link} at {each.endpoint}, "
            f"{worker}, breaker {each.breaker}, round {each.round}, {each.seconds:.0f} s"
            f"{'' if each.beating else ', LOOP STANDS STILL'}"
        )
    return "\n".join(lines)


def look_text(look: Look, reason: str) -> str:
    """Return for people what was seen of a silent daemon."""
    lines = [
        f"NOT HEALTHY: {reason}",
        f"process  {look.pid}{f' ({look.command})' if look.command else ''}: {look.state}",
    ]
    lines += [f"region   {_region(each)}" for each in look.regions]
    if look.lacks:
        lines.append(f"unseen   {look.lacks}")
    elif not look.regions:
        lines.append("region   none is open: no engine is connected")
    return "\n".join(lines)


def table(records: Sequence[RoundRecord]) -> str:
    """Return rounds as a table, the oldest first; times in us."""
    rows = [_COLUMNS, *map(_row, records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def dump_text(dump: Dump) -> str:
    title = f"session {dump.session}, {dump.engine} rank {dump.rank}: {len(dump.records)} rounds, times in us"
    return f"{title}\n{table(dump.records)}" if dump.records else title


def look_dump_text(look: Look) -> str:
    """Return the rounds in the regions of a silent daemon."""
    parts = [f"region {_region(each)}\n{table(each.records)}" for each in look.regions]
    return "\n".join(parts) or "no region is open"


def as_json(value: Status | Look | Sequence[Dump]) -> str:
    """Return it for programs. Records, short on the wire, get their names back."""
    return msgspec.json.encode(_named(msgspec.to_builtins(value), value)).decode()


def _named(builtins: object, value: object) -> object:
    if isinstance(value, RoundRecord):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, msgspec.Struct) and isinstance(builtins, dict):
        return {name: _named(each, getattr(value, name, each)) for name, each in builtins.items()}
    if isinstance(value, (list, tuple)) and isinstance(builtins, (list, tuple)):
        return [_named(each, one) for each, one in zip(builtins, value, strict=True)]
    return builtins


def _region(look: RegionLook) -> str:
    words = ", ".join(f"{name} {look.words[name]}" for name in ("submitted", "gathered", "released", "retired"))
    beat = "its loop runs" if look.beating else "its loop STANDS STILL"
    return f"{look.region}: {look.phase}, {beat}, {look.in_flight} in flight ({words})"


def _row(record: RoundRecord) -> tuple[str, ...]:
    gathered = record.gathered_ns if record.gathered_ns is not None else record.seen_ns
    return (
        str(record.round),
        record.verdict + ("*" if record.context_only else ""),
        str(record.n_requests),
        str(record.n_rows),
        _span(0, gathered),
        _span(gathered, record.seen_ns),
        _span(record.send_ns, record.sent_ns),
        _span(record.sent_ns, record.replied_ns),
        _span(record.replied_ns, record.decided_ns),
        _span(gathered, record.decided_ns),
    )


def _span(begin: int | None, end: int | None) -> str:
    return "-" if begin is None or end is None else f"{(end - begin) / 1e3:.0f}"
