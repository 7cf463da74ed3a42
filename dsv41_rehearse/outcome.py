# SPDX-License-Identifier: Apache-2.0
"""From what a drive found to a report, and to what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from dsv41_rehearse.audit_compare import Comparison
from dsv41_rehearse.drive import Drive, Driven, plain
from dsv41_rehearse.report import RunReport, origin


def report(
    how: Drive, driven: Driven, compared: Comparison | None, left_over: Sequence[str], expect_ok: bool
) -> RunReport:
    """
    Return the report. ``compared``: the audit's, None without one; then the mock's own check counts.

    ``expect_ok``: a lost session, or no round at all, is a fault (the rehearsal started the daemon itself).
    """
    engine, scenario = driven.engine, how.scenario
    tally, counts = engine.tally, engine.scheduler.counts
    batch = tally.batch.spread().mean
    checked = compared or Comparison(
        drafts_checked=driven.ledger.drafts_checked, wrong_drafts=driven.ledger.wrong_drafts
    )
    gone = [*driven.left_over, *left_over]
    where = origin(scenario.seed)
    return RunReport(
        commit=where.commit,
        machine=where.machine,
        command=where.command,
        seed=where.seed,
        daemon_pids=[driven.daemon_pid],
        requests_submitted=counts.submitted,
        requests_completed=counts.completed,
        steps=tally.steps,
        target_only_steps=tally.target_only_steps,
        tokens=tally.tokens,
        accepted_per_step=round(engine.accepted_per_step(), 4),
        identical=counts.identical,
        drafts_checked=checked.drafts_checked,
        wrong_drafts=max(checked.wrong_drafts, driven.ledger.wrong_drafts),
        rows_checked=checked.rows_checked,
        wrong_rows=checked.wrong_rows,
        rounds=dict(tally.rounds),
        skipped=dict(tally.skipped),
        submit_us=tally.submit_us.spread(batch),
        round_us=tally.round_us.spread(batch),
        step_ms=tally.step_ms.spread(batch),
        daemon=driven.daemon,
        before=plain(driven.before),
        after=plain(driven.after),
        context_rounds=tally.context_rounds,
        illegal_ids=driven.illegal_ids,
        events=asdict(counts),
        lost=driven.lost,
        seconds=round(driven.seconds, 3),
        left_over=gone,
        faults=faults(driven, checked, gone, expect_ok=expect_ok),
        engine=driven.status,
        scenario=scenario.options(),
    )


def faults(driven: Driven, checked: Comparison, left_over: Sequence[str], *, expect_ok: bool) -> list[str]:
    """Return what is wrong, in words; empty where the run is what it should be."""
    counts, tally = driven.engine.scheduler.counts, driven.engine.tally
    found = []
    if not counts.identical:
        found.append("the output is not the text")
    if counts.completed != counts.submitted:
        found.append(f"{counts.submitted - counts.completed} requests were not completed")
    if checked.wrong_drafts or driven.ledger.wrong_drafts:
        found.append(f"{max(checked.wrong_drafts, driven.ledger.wrong_drafts)} drafts are not what the worker answered")
    if checked.wrong_rows:
        found.append(f"{checked.wrong_rows} rows are not at the worker as they were sent")
    if checked.missing:
        found.append(f"{checked.missing} rounds ended OK that the worker knows nothing of")
    found += checked.examples
    if driven.illegal_ids:
        found.append(f"{driven.illegal_ids} draft ids out of [0, vocab) reached the device")
    if left_over:
        found.append("left over: " + "; ".join(left_over))
    if expect_ok and driven.lost:
        found.append(f"the session was lost: {driven.lost}")
    if expect_ok and not tally.rounds["OK"]:
        found.append("no round ended OK")
    return found
