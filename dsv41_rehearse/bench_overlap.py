# SPDX-License-Identifier: Apache-2.0
"""
What asynchronous rounds are good for: the same steps in modes async, sync and none, in interleaved blocks of one run.

A step's GPU work needs its launches done first, so the engine's CPU has something to do before the GPU has. In mode sync it
does it after the reply of the step before, in mode async while the GPU and the round are still busy.
"""

from __future__ import annotations

import argparse

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from rich.console import Console

from dsv41_rehearse.bench_show import Goal, plain
from dsv41_rehearse.drafting import ModeName
from dsv41_rehearse.drive import Drive, drive
from dsv41_rehearse.progress import Silent
from dsv41_rehearse.report import machine, origin, write
from dsv41_rehearse.samples import Few, Samples
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.stack import Stack
from dsv41_rehearse.text import load


MODES: Final[tuple[ModeName, ...]] = get_args(ModeName)
GPU_MS: Final = 30.0
CPU_MS: Final = 4.0
WORKER_MS: Final = 6.0
WARM_STEPS: Final = 8  # the prompts, and until the worker has opened the session
AT_LEAST_MS: Final = 3.0


@dataclass
class Measured:
    """Of one mode: milliseconds from launch to launch, over all blocks; ``medians``: of each block."""

    step: Samples = field(default_factory=Samples)
    round_us: Samples = field(default_factory=Samples)
    medians: list[float | None] = field(default_factory=list)
    rounds_ok: int = 0
    rounds_not_ok: int = 0
    wrong_drafts: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    recoveries_ms: list[float] = field(default_factory=list)


def scenario(steps: int, seed: int) -> Scenario:
    """Return about so many steps of three requests."""
    return Scenario(
        text=load(), requests=3, concurrency=3, uniform=True, prompt=32, length=32 + steps, arrival_steps=0, preempt_every=0,
        gpu_ms=GPU_MS, cpu_ms=CPU_MS, seed=seed,
    )  # fmt: skip


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Run it, print it, write the JSON. Returns 0: a goal that is not met is said, not hidden and not fatal."""
    console.print(f"[bold]dsv41-rehearse bench overlap[/bold] {machine()}", highlight=False, soft_wrap=True)
    console.print(
        f"  a step: {CPU_MS:g} ms of CPU launch work, then {GPU_MS:g} ms of GPU work, {WORKER_MS:g} ms of the worker's",
        highlight=False,
    )
    steps = max(1, int(arguments.block_s * 1e3 / (GPU_MS + WORKER_MS)))
    measured = {mode: Measured() for mode in MODES}
    with Stack() as stack:
        stack.start_daemon(stack.start_worker("mock", delay_ms=WORKER_MS))
        for block in range(arguments.blocks):
            console.print(f"  block {block + 1} of {arguments.blocks} ...", highlight=False)
            turn = block % len(MODES)
            for mode in (*MODES[turn:], *MODES[:turn]):
                _block(stack, mode, WARM_STEPS + steps, arguments.seed, measured[mode])
    report = _report(arguments, measured)
    _show(console, report)
    if arguments.json is not None:
        write(arguments.json, report)
    return 0


def _block(stack: Stack, mode: ModeName, steps: int, seed: int, measured: Measured) -> None:
    how = Drive(scenario=scenario(steps, seed), socket=stack.socket, mode=mode, check_mock=True)
    with Silent() as watch:
        driven = drive(how, watch)
    tally = driven.engine.tally
    block = Samples()
    block.values.extend(tally.step_ms.values[WARM_STEPS:])
    measured.step.values.extend(block.values)
    measured.round_us.values.extend(tally.round_us.values)
    measured.medians.append(block.percentile(50))
    measured.rounds_ok += tally.rounds["OK"]
    measured.rounds_not_ok += sum(tally.rounds.values()) - tally.rounds["OK"]
    measured.losses.update(driven.status.get("losses", {}))
    measured.recoveries_ms += driven.sessions.recoveries_ms()
    measured.wrong_drafts += driven.books.wrong_drafts


def _report(arguments: argparse.Namespace, measured: dict[ModeName, Measured]) -> dict[str, Any]:
    steps = {mode: one.step.spread() for mode, one in measured.items()}
    sync, asynchronous = steps["sync"].p50, steps["async"].p50
    saved = None if sync is None or asynchronous is None else round(sync - asynchronous, 3)
    goal = Goal("async step less sync step, p50 ms", -AT_LEAST_MS, None if saved is None else -saved)
    return {
        **plain(origin(arguments.seed)),
        "blocks": arguments.blocks,
        "gpu_ms": GPU_MS,
        "cpu_ms": CPU_MS,
        "worker_ms": WORKER_MS,
        "step_ms": {mode: plain(spread) for mode, spread in steps.items()},
        "round_us": {mode: plain(one.round_us.spread()) for mode, one in measured.items()},
        "block_medians_ms": {mode: one.medians for mode, one in measured.items()},
        "async_saves_ms": saved,
        "rounds": {mode: {"OK": one.rounds_ok, "others": one.rounds_not_ok} for mode, one in measured.items()},
        "wrong_drafts": sum(one.wrong_drafts for one in measured.values()),
        "losses": dict(sum((one.losses for one in measured.values()), Counter())),
        "recovery_ms": plain(Few.of(ms for one in measured.values() for ms in one.recoveries_ms)),
        "goals": [plain(goal)],
    }


def _show(console: Console, report: dict[str, Any]) -> None:
    console.print("step, ms      p50     p99    mean   blocks' medians", highlight=False)
    for mode, spread in report["step_ms"].items():
        medians = ", ".join(f"{median:.1f}" for median in report["block_medians_ms"][mode] if median is not None)
        console.print(
            f"{mode:<9} {spread['p50']:7.2f} {spread['p99']:7.2f} {spread['mean']:7.2f}   {medians}",
            highlight=False,
            soft_wrap=True,
        )
    for goal in report["goals"]:
        word = "[green]met[/green]   " if goal["met"] else "[red]missed[/red]"
        console.print(f"{word} {goal['name']}: {goal['measured']} (at most {goal['at_most']:g})", highlight=False)
