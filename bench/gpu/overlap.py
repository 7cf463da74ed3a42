# SPDX-License-Identifier: Apache-2.0
"""
What asynchronous rounds are good for: an engine's loop with real launches, its step and its time to first token, in every way.

As vLLM with asynchronous scheduling: a step's tokens are waited for once the next step is launched, so two are in flight; a round is
parked behind the step that its rows come from.

The tokens of a step and its round come of the same kernels. So the engine's thread wakes when the round of the step before is gathered, launches,
and has its Python work to do while that round is under way: where the interpreter is busy (``PYTHON_MS``), whoever needs it for a
round waits for it. The work stands before the submit: so synchronous rounds, too, have it behind the GPU's work, and not on top of it.
"""

from __future__ import annotations

import sys
import time

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch

from bench.gpu.busy import IDLE, Busy
from bench.gpu.load import Load
from bench.gpu.product import start_daemon
from bench.gpu.step import GEOMETRY, ROWS, Item, Tensors, decoding
from bench.gpu.waynames import WAYS
from bench.gpu.ways import Place, Way, way
from dsv41_rehearse.samples import Few, Samples
from dsv41_rehearse.stack import Stack
from engine_shim.cudastream import CudaStream


WORKER_MS: Final = (2.0, 6.0, 12.0)
REQUESTS: Final = 3
WARM: Final = 24  # steps until the daemon knows the pace
CHUNK: Final = 256  # prompt rows of a step
CHUNKS: Final = 10  # of each of the three prompts
TTFT_WORKER_MS: Final = 6.0  # and that of the busy interpreter
PYTHON_MS: Final = 20.0
MAX_ROWS: Final = CHUNK + REQUESTS * ROWS


def measure(load: Load, blocks: int, steps: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return steps, ms, by worker time and way; and times to first token, ms, by way."""
    found: dict[str, Any] = {
        "gpu_ms": load.gpu_ms,
        "cpu_ms": load.cpu_ms,
        "kernels": load.kernels,
        "requests": REQUESTS,
        "step": [],
    }
    with Stack() as stack, ExitStack() as open_ones:
        stream = open_ones.enter_context(CudaStream(load.stream))
        tensors = Tensors(stream, MAX_ROWS)
        for worker_ms in WORKER_MS:
            name = f"worker-{worker_ms:g}"
            worker = stack.start_worker("mock", delay_ms=worker_ms, name=name)
            _, socket = start_daemon(stack, worker, f"daemon-{worker_ms:g}")
            place = Place(load.stream, stream, tensors, socket, worker)
            say(f"overlap, worker {worker_ms:g} ms")
            found["step"].append({"worker_ms": worker_ms, **_steps(place, load, blocks, steps)})
            if worker_ms == TTFT_WORKER_MS:
                say("overlap, time to first token")
                found["first_token"] = {"worker_ms": worker_ms, "chunks": CHUNKS, **_first_tokens(place, load, blocks)}
                say("overlap, with a busy interpreter")
                found["busy"] = _busy(place, load, blocks, steps, worker_ms)
    return found


def _busy(place: Place, load: Load, blocks: int, steps: int, worker_ms: float) -> dict[str, Any]:
    """Return the same with Python work in each step, and how much of it."""
    work = Busy(PYTHON_MS)
    facts = {"worker_ms": worker_ms, "python_ms": work.ms, "switch_ms": sys.getswitchinterval() * 1e3}
    return {
        **facts,
        "step": _steps(place, load, blocks, max(1, steps // 2), work),
        "first_token": {"worker_ms": worker_ms, "chunks": CHUNKS, **_first_tokens(place, load, blocks, work)},
    }


@dataclass
class Spent:
    """
    Of the steps of one way, ms. ``step``: from tokens to tokens, as the engine's thread sees them.

    ``work``, ``inside``: by the GPU's own clock, a step's kernels and what is enqueued behind them for the round, the wait included.
    """

    step: Samples = field(default_factory=Samples)
    work: Samples = field(default_factory=Samples)
    inside: Samples = field(default_factory=Samples)
    medians: list[float | None] = field(default_factory=list)
    rounds: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "step_ms": asdict(self.step.spread()), "work_ms": asdict(self.work.spread()),
            "in_stream_ms": asdict(self.inside.spread()), "block_medians_ms": self.medians, "rounds": self.rounds,
        }  # fmt: skip


class Clock:
    """Notes on the stream when each step's kernels are over and when its round is."""

    def __init__(self, steps: int) -> None:
        self.before, self.after = ([torch.cuda.Event(enable_timing=True) for _ in range(steps)] for _ in range(2))

    def book(self, warm: int, spent: Spent) -> None:
        """Book the steps behind the warm ones, once the stream is past them."""
        for index in range(warm, len(self.before)):
            spent.work.add(self.after[index - 1].elapsed_time(self.before[index]))
            spent.inside.add(self.before[index].elapsed_time(self.after[index]))


def _steps(place: Place, load: Load, blocks: int, steps: int, work: Busy = IDLE) -> dict[str, Any]:
    spent = {name: Spent() for name in WAYS}
    for block in range(blocks):
        turn = block % len(WAYS)
        for name in (*WAYS[turn:], *WAYS[:turn]):
            clock = Clock(WARM + steps)
            with way(name, place, REQUESTS) as one, torch.cuda.stream(load.stream):
                taken = _loop(one, load, [decoding(REQUESTS)] * (WARM + steps), clock, work)[0][WARM:]
                spent[name].rounds = one.rounds()
            clock.book(WARM, spent[name])
            samples = Samples()
            samples.values.extend(taken)
            spent[name].medians.append(samples.percentile(50))
            spent[name].step.values.extend(taken)
    return {name: one.plain() for name, one in spent.items()}


def _loop(
    one: Way, load: Load, plan: Sequence[Sequence[Item]], clock: Clock, work: Busy
) -> tuple[list[float], list[float]]:
    """Do the steps; return what each took, ms, and when the tokens of each were there, s. The stream is past them then."""
    events = [torch.cuda.Event(blocking=True) for _ in range(2)]
    taken: list[float] = []
    seen: list[float] = []
    last = time.perf_counter()
    for index, items in enumerate(plan):
        load.launch()
        events[index % 2].record(load.stream)
        clock.before[index].record(load.stream)
        work()
        # Where the drafts are there, so are the tokens. Else those of the step before are waited for, and this one runs on.
        there = index if one.submit(items) else index - 1
        clock.after[index].record(load.stream)
        if there >= 0:
            events[there % 2].synchronize()
        now = time.perf_counter()
        seen += [now] * (there + 1 - len(seen))
        taken.append((now - last) * 1e3)
        last = now
    load.stream.synchronize()
    seen += [time.perf_counter()] * (len(plan) - len(seen))
    return taken, seen


def _prompts() -> list[list[Item]]:
    """Return the steps of three prompts that arrive together: one after the other is read, in chunks, while those before it decode."""
    plan = []
    for reading in range(REQUESTS):
        for chunk in range(CHUNKS):
            to_come = (CHUNKS - 1 - chunk) * CHUNK
            prompt = Item(reading, 0, CHUNK, draft=to_come == 0, prefill=True, to_come=to_come)
            plan.append([prompt, *(Item(slot, CHUNK + slot * ROWS, ROWS) for slot in range(reading))])
    return plan


def _first_tokens(place: Place, load: Load, blocks: int, work: Busy = IDLE) -> dict[str, Any]:
    """Return, by way, the mean time to first token of the three requests of each run, ms; synchronous and ours side by side."""
    means: dict[str, list[float]] = defaultdict(list)
    plan = _prompts()
    for block in range(blocks):
        turn = block % len(WAYS)
        for name in (*WAYS[turn:], *WAYS[:turn]):
            with way(name, place, REQUESTS) as one, torch.cuda.stream(load.stream):
                began = time.perf_counter()
                _, seen = _loop(one, load, plan, Clock(len(plan)), work)
            firsts = [(seen[(index + 1) * CHUNKS - 1] - began) * 1e3 for index in range(REQUESTS)]
            means[name].append(sum(firsts) / REQUESTS)
    return {name: {"first_token_ms": asdict(Few.of(means[name])), "runs_ms": means[name]} for name in WAYS}


assert GEOMETRY.window <= CHUNK, "the last chunk holds all that a drafter wants"
