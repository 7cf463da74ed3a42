# SPDX-License-Identifier: Apache-2.0
"""From what a drive found to a report, and to what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from dsv41_rehearse import aftermath
from dsv41_rehearse.audit_compare import Comparison
from dsv41_rehearse.drive import Drive, Driven, plain
from dsv41_rehearse.engine import ROUNDLESS_S
from dsv41_rehearse.report import RunReport, origin


def report(
    how: Drive,
    driven: Driven,
    compared: Comparison | None,
    left_over: Sequence[str],
    expect_ok: bool,
    *,
    expect_drafts: bool = False,
) -> RunReport:
    """
    Return the report. ``compared``: the audit's, None without one; then the mock's own check counts.

    ``expect_ok``: a session lost unplanned, or no round at all, is a fault (the rehearsal started the daemon itself).
    ``expect_drafts``: no round at all that ended OK is one also where losses are none (the daemon is somebody's).
    """
    engine, scenario = driven.engine, how.scenario
    tally, counts = engine.tally, engine.scheduler.counts
    batch = tally.batch.spread().mean
    checked = compared or Comparison(drafts_checked=driven.books.drafts_checked, wrong_drafts=driven.books.wrong_drafts)
    gone = [*driven.left_over, *left_over]
    where = origin(scenario.seed)
    after_losses = aftermath.aftermath(driven, how.drill)
    simulated = scenario.simulate_acceptance
    return RunReport(
        commit=where.commit,
        machine=where.machine,
        command=where.command,
        seed=where.seed,
        daemon_pids=list(dict.fromkeys(one.pid for one in driven.sessions.seen)),
        requests_submitted=counts.submitted,
        requests_completed=counts.completed,
        steps=tally.steps,
        target_only_steps=tally.target_only_steps,
        tokens=tally.tokens,
        accepted_per_step=None if simulated else round(engine.accepted_per_step(), 4),
        identical=counts.identical,
        drafts_checked=checked.drafts_checked,
        wrong_drafts=max(checked.wrong_drafts, driven.books.wrong_drafts),
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
        mode=how.mode,
        acceptance_simulated=simulated,
        accepted_over_time=engine.timeline.series(),
        losses=after_losses.losses,
        loss_seen_ms=after_losses.loss_seen_ms,
        released_ms=after_losses.released_ms,
        recovery_from=after_losses.recovery_from,
        recovery_ms=after_losses.recovery_ms,
        recovery_from_kill_ms=after_losses.recovery_from_kill_ms,
        registrations=after_losses.registrations,
        adoptions=after_losses.adoptions,
        loss_times=after_losses.loss_times,
        lost=driven.lost,
        seconds=round(driven.seconds, 3),
        left_over=gone,
        faults=[
            *faults(driven, checked, gone),
            *aftermath.faults(driven, how.drill, expect_ok=expect_ok),
            *(_undrafted(driven) if (expect_ok or expect_drafts) and how.mode != "none" else []),
        ],
        engine=driven.status,
        scenario=scenario.options(),
    )


def _undrafted(driven: Driven) -> list[str]:
    """Return, where not one round ended OK, that and what became of them: an engine without drafts is right, and of no use."""
    tally = driven.engine.tally
    if tally.rounds["OK"]:
        return []
    rounds = ", ".join(f"{count} {verdict}" for verdict, count in sorted(tally.rounds.items()) if count)
    skipped = ", ".join(f"{count} {why}" for why, count in sorted(tally.skipped.items()) if count)
    lost = f"; the session was lost: {driven.lost}" if driven.lost else ""
    said = f"rounds: {rounds or 'none'}; steps without one: {skipped or 'none'}{lost}"
    return [f"no draft came through, no round ended OK ({said}): see the daemon's log, and its worker"]


def faults(driven: Driven, checked: Comparison, left_over: Sequence[str]) -> list[str]:
    """Return what is wrong, in words; empty where the run is what it should be."""
    counts = driven.engine.scheduler.counts
    found = []
    if not counts.identical:
        found.append("the output is not the text")
    if driven.engine.roundless:
        lost = f"; the session was lost: {driven.lost}" if driven.lost else ""
        made = sum(driven.engine.tally.rounds.values())
        found.append(f"{made} of {driven.engine.scenario.rounds} rounds, then none for {ROUNDLESS_S:g} s{lost}")
    if counts.completed != counts.submitted:
        found.append(f"{counts.submitted - counts.completed} requests were not completed")
    if checked.wrong_drafts or driven.books.wrong_drafts:
        found.append(f"{max(checked.wrong_drafts, driven.books.wrong_drafts)} drafts are not what the worker answered")
    if checked.wrong_rows:
        found.append(f"{checked.wrong_rows} rows are not at the worker as they were sent")
    if checked.missing:
        found.append(f"{checked.missing} rounds ended OK that the worker knows nothing of")
    found += checked.examples
    if driven.illegal_ids:
        found.append(f"{driven.illegal_ids} draft ids out of [0, vocab) reached the device")
    if left_over:
        found.append("left over: " + "; ".join(left_over))
    return found
