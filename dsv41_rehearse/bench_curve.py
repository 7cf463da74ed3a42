# SPDX-License-Identifier: Apache-2.0
"""What an encrypted worker link (CURVE) costs a round: the same rounds over a plain and an encrypted one, in interleaved blocks."""

from __future__ import annotations

import argparse

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from dsv41_rehearse.bench_case import SIZES, Case
from dsv41_rehearse.bench_round import RoundPath, RoundSamples
from dsv41_rehearse.bench_show import plain
from dsv41_rehearse.report import machine, origin, write
from dsv41_rehearse.stack import Stack
from hostflag.keys import write_pair


LINKS: Final = ("plain", "curve")
WARM_S: Final = 0.5


@dataclass
class Measured:
    """Of one link and size: all samples; ``medians``: p50 of each block, in us."""

    rounds: RoundSamples = field(default_factory=RoundSamples)
    medians: list[float | None] = field(default_factory=list)


Found = Mapping[tuple[str, str], Measured]  # by link, size


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Run it, print it, write the JSON. Returns 0."""
    case = Case(seed=arguments.seed)
    console.print(f"[bold]dsv41-rehearse bench curve[/bold] {machine()}", highlight=False, soft_wrap=True)
    found = {(link, size): Measured() for link in LINKS for size in SIZES}
    with ExitStack() as stack:
        paths = _paths(stack, case)
        for link, size in found:
            paths[link].measure(SIZES[size], WARM_S)
        for number in range(arguments.blocks):
            console.print(f"  block {number + 1} of {arguments.blocks} ...")
            for link, size in sorted(found, reverse=bool(number % 2)):
                done = paths[link].measure(SIZES[size], arguments.block_s)
                found[link, size].rounds.extend(done)
                found[link, size].medians.append(done.round.percentile(50))
    report = _report(found, arguments)
    _show(console, report)
    if arguments.json is not None:
        write(arguments.json, report)
    return 0


def _paths(stack: ExitStack, case: Case) -> dict[str, RoundPath]:
    """Return a session a link, each with a daemon and a worker of its own."""
    processes = stack.enter_context(Stack())
    for name in ("daemon", "worker"):
        write_pair(processes.directory, name)
    where = processes.directory
    curve = {
        "worker": [
            "--curve-secret-key-file",
            f"{where}/worker.key",
            "--curve-allowed-keys-file",
            f"{where}/daemon.pub",
        ],
        "daemon": ["--curve-secret-key-file", f"{where}/daemon.key", "--curve-server-key-file", f"{where}/worker.pub"],
    }
    paths = {}
    for link in LINKS:
        flags = curve if link == "curve" else {"worker": [], "daemon": []}
        endpoint = where / f"{link}.endpoint"
        worker = ["--bind", "tcp://127.0.0.1:*", "--endpoint-file", str(endpoint), "--log-format", "json"]
        processes.start(f"worker-{link}", "refworker", [*worker, *flags["worker"]]).ready()
        socket = where / f"{link}.sock"
        daemon = ["--socket", str(socket), "--worker", endpoint.read_text().strip(), "--metrics", "off"]
        processes.start(f"daemon-{link}", "proxyd", [*daemon, "--log-format", "json", *flags["daemon"]]).ready()
        paths[link] = stack.enter_context(closing(RoundPath(socket, case, f"bench-{link}")))
    return paths


def _report(found: Found, arguments: argparse.Namespace) -> dict[str, Any]:
    spreads = {
        f"{link}_{what}_us": {size: plain(getattr(found[link, size].rounds, what).spread()) for size in SIZES}
        for what in ("round", "send", "own")
        for link in LINKS
    }
    extra = {size: _extra(found, size) for size in SIZES}
    return {
        **plain(origin(arguments.seed)),
        "blocks": arguments.blocks,
        "block_s": arguments.block_s,
        **spreads,
        "curve_extra_us": extra,
        "block_medians_us": {link: {size: found[link, size].medians for size in SIZES} for link in LINKS},
        "failed_rounds": sum(each.rounds.failed for each in found.values()),
    }


def _extra(found: Found, size: str) -> float | None:
    """Return how much longer the median round takes."""
    before, after = (found[link, size].rounds.round.percentile(50) for link in LINKS)
    return round(after - before, 3) if before is not None and after is not None else None


def _show(console: Console, report: Mapping[str, Any]) -> None:
    table = Table("us, p50 / p99", *SIZES, box=None, padding=(0, 2, 0, 0))
    for name in (key for key in report if key.endswith("_us") and "extra" not in key and "medians" not in key):
        table.add_row(name, *(f"{spread['p50']} / {spread['p99']}" for spread in report[name].values()))
    console.print(table)
    for size, extra in report["curve_extra_us"].items():
        console.print(f"an encrypted link makes the median round of {size} {extra} us longer", highlight=False)
