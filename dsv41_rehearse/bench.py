# SPDX-License-Identifier: Apache-2.0
"""
The bench: rounds against bare pyzmq, with and without a scraper, in interleaved blocks of one run; the daemon at rest.

Definitions. raw: DEALER/ROUTER of bare pyzmq, the same bytes, the same worker. round: gathered to released. scraped: /metrics
of the daemon read 20 times a second meanwhile; elsewhere: the same scraping of another process. own: the daemon from seeing
a round to deciding it, without the transport's calls and the worker. send: the transport taking the round. submit: the
engine thread's call.
"""

from __future__ import annotations

import argparse

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console

from dsv41_rehearse import bench_show
from dsv41_rehearse.bench_case import SIZES, Case
from dsv41_rehearse.bench_raw import RawPath
from dsv41_rehearse.bench_rest import Idle, Pace, idle, pace
from dsv41_rehearse.bench_round import RoundPath, RoundSamples
from dsv41_rehearse.bench_scraper import Scraper
from dsv41_rehearse.report import machine, origin, write
from dsv41_rehearse.samples import Few, Samples
from dsv41_rehearse.stack import Stack


KINDS: Final = ("raw", "round", "scraped", "elsewhere")
WARM_S: Final = 0.5


@dataclass
class Measured:
    """Samples of one size. ``medians``: p50 of each block, by kind; ``ratios``: round / raw, block by block."""

    raw: Samples = field(default_factory=Samples)
    round: RoundSamples = field(default_factory=RoundSamples)
    scraped: RoundSamples = field(default_factory=RoundSamples)
    elsewhere: RoundSamples = field(default_factory=RoundSamples)
    medians: dict[str, list[float | None]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    fetches: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Bench:
    """What is measured with: one daemon, one worker, an unrelated daemon to scrape, one session, one bare socket."""

    raw: RawPath
    round: RoundPath
    scraper: Scraper
    metrics: str
    metrics_elsewhere: str

    def block(self, size: str, measured: Measured, seconds: float, turn: int) -> None:
        """Measure each kind once; where in the block a kind stands changes from block to block."""
        rows = SIZES[size]
        for kind in (*KINDS[turn % len(KINDS) :], *KINDS[: turn % len(KINDS)]):
            if kind == "raw":
                samples = self.raw.measure(rows, seconds)
                measured.raw.values.extend(samples.values)
            else:
                done, fetched = self._scraped(rows, seconds, kind)
                measured.fetches[kind] += fetched
                getattr(measured, kind).extend(done)
                samples = done.round
            measured.medians[kind].append(samples.percentile(50))

    def _scraped(self, rows: int, seconds: float, kind: str) -> tuple[RoundSamples, int]:
        url = {"scraped": self.metrics, "elsewhere": self.metrics_elsewhere}.get(kind)
        if url is None:
            return self.round.measure(rows, seconds), 0
        self.scraper.scrape(url)
        try:
            done = self.round.measure(rows, seconds)
        finally:
            fetched = self.scraper.scrape(None)
        return done, fetched


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Run the bench, print it, write the JSON. Returns 0: goals that are not met are said, not hidden and not fatal."""
    case = Case(seed=arguments.seed)
    console.print(f"[bold]dsv41-rehearse bench[/bold] {machine()}", highlight=False, soft_wrap=True)
    with Stack() as stack:
        endpoint = stack.start_worker("mock")
        daemon = stack.start_daemon(endpoint)
        console.print("  the daemon at rest ...")
        losses: Counter[str] = Counter()
        at_rest = idle(stack.socket, daemon.pid, case, arguments.idle_s, losses)
        console.print("  25 rounds a second ...")
        at_pace = pace(stack.socket, daemon.pid, case, arguments.pace_s, losses)
        with _paths(stack, endpoint, case, losses) as bench:
            sizes = _blocks(bench, arguments, console)
    report = _report(case, sizes, at_rest, at_pace, arguments)
    # A session that is lost is not followed by another one here: there is nothing to recover from.
    report |= {"losses": dict(losses), "recovery_ms": bench_show.plain(Few.of(()))}
    bench_show.show(console, report)
    if arguments.json is not None:
        write(arguments.json, report)
    return 0


def _blocks(bench: Bench, arguments: argparse.Namespace, console: Console) -> dict[str, Measured]:
    sizes = {size: Measured() for size in SIZES}
    for size in sizes:
        bench.block(size, Measured(), WARM_S, 0)
    for number in range(arguments.blocks):
        console.print(f"  block {number + 1} of {arguments.blocks} ...")
        for size, measured in sizes.items():
            bench.block(size, measured, arguments.block_s, number)
    return sizes


@contextmanager
def _paths(stack: Stack, endpoint: str, case: Case, losses: Counter[str]) -> Iterator[Bench]:
    elsewhere = stack.start_daemon(endpoint, name="unrelated", socket=stack.directory / "unrelated.sock")
    with (
        closing(RawPath(endpoint, case)) as raw,
        closing(RoundPath(stack.socket, case, "bench-round", losses)) as path,
        closing(Scraper()) as scraper,
    ):
        yield Bench(raw, path, scraper, path.session.welcome.metrics or "", metrics_of(elsewhere.ready()))


def metrics_of(ready: dict[str, Any]) -> str:
    """Return the metrics URL that a daemon's ready line names."""
    named = str(ready["metrics"])
    return named if named.startswith("http") else f"http://{named}/metrics"


def _report(
    case: Case, sizes: dict[str, Measured], at_rest: Idle, at_pace: Pace, arguments: argparse.Namespace
) -> dict[str, Any]:
    spreads = {
        "raw_us": {size: one.raw.spread() for size, one in sizes.items()},
        "round_us": {size: one.round.round.spread() for size, one in sizes.items()},
        "round_scraped_us": {size: one.scraped.round.spread() for size, one in sizes.items()},
        "round_scraped_elsewhere_us": {size: one.elsewhere.round.spread() for size, one in sizes.items()},
        "own_us": {size: one.round.own.spread() for size, one in sizes.items()},
        "send_us": {size: one.round.send.spread() for size, one in sizes.items()},
        "submit_us": {size: one.round.submit.spread() for size, one in sizes.items()},
        "wake_us": {size: one.round.wake.spread() for size, one in sizes.items()},
    }
    goals = bench_show.goals(spreads, at_rest, at_pace)
    return {
        **bench_show.plain(origin(arguments.seed)),
        "blocks": arguments.blocks,
        "block_s": arguments.block_s,
        "gpu_ms": case.gpu_ms,
        "ring_bytes": case.geometry.ring_bytes,
        **{name: {size: bench_show.plain(spread) for size, spread in by.items()} for name, by in spreads.items()},
        "block_medians_us": {size: one.medians for size, one in sizes.items()},
        "fetches": dict(sum((one.fetches for one in sizes.values()), Counter())),
        "failed_rounds": sum(part.failed for one in sizes.values() for part in (one.round, one.scraped, one.elsewhere)),
        "idle": bench_show.plain(at_rest),
        "pace": bench_show.plain(at_pace),
        "goals": [bench_show.plain(goal) for goal in goals],
    }
