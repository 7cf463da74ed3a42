# SPDX-License-Identifier: Apache-2.0
"""What a person reads after a run."""

from __future__ import annotations

from rich.console import Console

from dsv41_rehearse.audit_compare import Comparison
from dsv41_rehearse.report import RunReport
from dsv41_rehearse.samples import Spread


def show(console: Console, report: RunReport) -> None:
    """Print what happened, and at the end in one line whether that is what should have."""
    _table(console, lines(report))
    for fault in report.faults:
        console.print(f"[red]WRONG[/red]      {fault}", highlight=False, soft_wrap=True)
    if report.good:
        console.print(
            f"[green]GOOD[/green]       the output is the text, and {_good(report)}",
            highlight=False,
            soft_wrap=True,
        )


def _good(report: RunReport) -> str:
    if report.mode == "none":
        return "nobody drafted"
    if any(report.losses.values()):
        return "every draft that was used is the worker's own, before the loss and after it"
    return "nothing was lost on the way"


def lines(report: RunReport) -> list[tuple[str, str]]:
    """Return the summary as (name, what is said)."""
    said = [
        ("requests", _requests(report)),
        ("output", f"{report.tokens} tokens in {report.seconds:.1f} s, {_identical(report)}"),
        ("drafts", f"{_accepted(report)}; {report.drafts_checked} checked, {report.wrong_drafts} wrong"),
        ("rows", f"{report.rows_checked} checked, {report.wrong_rows} wrong"),
        ("steps", f"{report.steps}, of which {report.target_only_steps} target-only{_skipped(report)}"),
        ("rounds", f"{_counts(report.rounds) or 'none'}, and {report.context_rounds} context-only"),
        ("step", f"{report.step_ms} ms, {report.step_ms.batch or 0:.1f} requests on average"),
    ]
    if report.mode != "none":
        said += [
            ("submit", _times(report.submit_us, "of the engine thread")),
            ("round", _times(report.round_us, "from rows gathered to stream released")),
            ("daemon", _daemon(report)),
        ]
    if report.recovery_from == "ready":
        said += _losses(report)
    elif any(report.losses.values()):
        said.append(("losses", _other_losses(report)))
    said.append(
        ("left over", "; ".join(report.left_over) or "nothing: no process, descriptor, thread, shared memory or file")
    )
    return said


def _times(spread: Spread, of: str) -> str:
    return f"{spread} us {of}" if spread.n else "none was measured"


def _accepted(report: RunReport) -> str:
    if report.accepted_per_step is None:
        return "acceptance simulated"
    return f"{report.accepted_per_step:.2f} accepted a step"


def _losses(report: RunReport) -> list[tuple[str, str]]:
    """What the rehearsal did to the daemon, and how the engine got over it."""
    killed, *_ = report.loss_times
    pids = " and ".join(str(pid) for pid in report.daemon_pids)
    parked = "" if report.released_ms.max is None else f", a parked round let go after {report.released_ms} ms"
    region = "its region taken over as it was" if report.adoptions else "in a new region"
    back = f"drafting again {report.recovery_ms} ms after the next daemon was ready"
    if report.recovery_ms.n == 0:
        back = "no drafts from the next daemon"
    return [
        ("killed", f"the daemon with SIGKILL at {killed.hurt or 0:.1f} s; seen after {report.loss_seen_ms} ms{parked}"),
        ("back", f"{back}, {report.recovery_from_kill_ms} ms after the kill; {region}; daemons {pids}"),
    ]


def _other_losses(report: RunReport) -> str:
    counts = _counts({reason: count for reason, count in report.losses.items() if count})
    if report.lost:
        return f"{counts}; the run went on without drafts to its end"
    return f"{counts}; drafting again after {report.recovery_ms} ms"


def _table(console: Console, rows: list[tuple[str, str]]) -> None:
    # No rich table: where there is no terminal it would be cut to 80 columns.
    for name, said in rows:
        console.print(f"[bold]{name:<10}[/bold] {said}", highlight=False, soft_wrap=True)


def _requests(report: RunReport) -> str:
    counts = report.events
    return (
        f"{report.requests_completed} of {report.requests_submitted} completed; {counts['preempted']} preempted, "
        f"{counts['cache_hits']} prefix-cache hits, {counts['slot_reuses']} slots reused"
    )


def _identical(report: RunReport) -> str:
    return "identical to the text, byte for byte" if report.identical else "NOT the text"


def _skipped(report: RunReport) -> str:
    return f" (no round: {_counts(report.skipped)})" if report.skipped else ""


def _counts(values: object) -> str:
    assert isinstance(values, dict)
    return ", ".join(f"{count} {name}" for name, count in sorted(values.items()))


def _daemon(report: RunReport) -> str:
    daemon = report.daemon
    if daemon.rss_private_mib is None:
        return "could not be looked at"
    idle = "" if daemon.idle_cpu_percent is None else f", {daemon.idle_cpu_percent:.2f} % of a core when idle"
    busy = "" if daemon.cpu_percent is None else f", {daemon.cpu_percent:.0f} % in the run"
    return f"{daemon.rss_private_mib:.1f} MiB of its own, {daemon.region_mib:.1f} MiB of region{idle}{busy}"


def show_comparison(console: Console, found: Comparison) -> None:
    """Print what a comparison of audits found."""
    _table(
        console,
        [
            ("rounds", f"{found.rounds} of {found.sessions} sessions, {found.rounds_ok} OK"),
            ("rows", f"{found.rows_checked} checked, {found.wrong_rows} wrong"),
            ("drafts", f"{found.drafts_checked} checked, {found.wrong_drafts} wrong"),
            ("not there", f"{found.missing} rounds that ended OK, {found.unmatched} that did not"),
        ],
    )
    for example in found.examples:
        console.print(f"[red]WRONG[/red]      {example}", highlight=False, soft_wrap=True)
    console.print("[green]identical[/green]" if found.identical else "[red]NOT identical[/red]")
