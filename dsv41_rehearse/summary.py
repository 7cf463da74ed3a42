# SPDX-License-Identifier: Apache-2.0
"""What a person reads after a run."""

from __future__ import annotations

from rich.console import Console

from dsv41_rehearse.audit_compare import Comparison
from dsv41_rehearse.report import RunReport


def show(console: Console, report: RunReport) -> None:
    """Print what happened, and at the end in one line whether that is what should have."""
    _table(console, lines(report))
    for fault in report.faults:
        console.print(f"[red]WRONG[/red]      {fault}", highlight=False, soft_wrap=True)
    if report.good:
        console.print(
            "[green]GOOD[/green]       the output is the text, and nothing was lost on the way",
            highlight=False,
            soft_wrap=True,
        )


def lines(report: RunReport) -> list[tuple[str, str]]:
    """Return the summary as (name, what is said)."""
    said = [
        ("requests", _requests(report)),
        (
            "output",
            f"{report.tokens} tokens in {report.seconds:.1f} s, {_identical(report)}",
        ),
        (
            "drafts",
            f"{report.accepted_per_step:.2f} accepted a step; {report.drafts_checked} checked, {report.wrong_drafts} wrong",
        ),
        ("rows", f"{report.rows_checked} checked, {report.wrong_rows} wrong"),
        ("steps", f"{report.steps}, of which {report.target_only_steps} target-only{_skipped(report)}"),
        ("rounds", f"{_counts(report.rounds) or 'none'}, and {report.context_rounds} context-only"),
        ("step", f"{report.step_ms} ms, {report.step_ms.batch or 0:.1f} requests on average"),
        ("submit", f"{report.submit_us} us of the engine thread"),
        ("round", f"{report.round_us} us from rows gathered to stream released"),
        ("daemon", _daemon(report)),
    ]
    if report.lost:
        said.append(("session", f"lost ({report.lost}); the run went on without drafts to its end"))
    said.append(
        ("left over", "; ".join(report.left_over) or "nothing: no process, descriptor, thread, shared memory or file")
    )
    return said


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
