# SPDX-License-Identifier: Apache-2.0
"""What a round costs: bare C against the product, in interleaved blocks of one run."""

from __future__ import annotations

import functools

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.gpu.bare.build import Floor, NoSuchCase
from bench.gpu.cores import Cores
from bench.gpu.product import NAPPING, SPINNING, Engine, Rounds, start_daemon, with_echo, with_shim
from bench.gpu.step import ROWS, Item, Tensors, decoding
from dsv41_rehearse.samples import Samples
from dsv41_rehearse.stack import Stack
from engine_shim import Session, StreamRefused
from engine_shim.cudastream import CudaStream


REQUESTS: Final = (1, 3, 6, 16)
BARE: Final = (
    ("empty", 1), ("unbatched", 1), ("chain", 1), ("hostfunc", 1), ("event", 1), ("blocking", 1), ("calls", 1), ("calls-together", 1),
    *(("round", requests) for requests in REQUESTS), *(("round-together", requests) for requests in REQUESTS),
)  # fmt: skip
WITHOUT_ROWS: Final = [Item(0, 0, 0)]
PAUSE_US: Final = 500  # about what the reference worker takes for a round of 3 requests


@dataclass
class Case:
    """Samples in us, and the median total of each block. ``own``: of the product, the total less what the transport took."""

    submit: Samples = field(default_factory=Samples)
    total: Samples = field(default_factory=Samples)
    own: Samples = field(default_factory=Samples)
    medians: list[float | None] = field(default_factory=list)
    failed: int = 0

    def add(self, submit: Samples, total: Samples, own: Samples, failed: int) -> None:
        """Append a block."""
        self.submit.values.extend(submit.values)
        self.total.values.extend(total.values)
        self.own.values.extend(own.values)
        self.medians.append(total.percentile(50))
        self.failed += failed

    def plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "submit_us": asdict(self.submit.spread()), "total_us": asdict(self.total.spread()),
            "own_us": asdict(self.own.spread()), "block_medians_us": self.medians, "failed": self.failed,
        }  # fmt: skip


Job = Callable[[Case], None]


def measure(floor: Floor, cores: Cores | None, blocks: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """
    Return every case by name, such as "bare round 3", round by how many requests. Every engine's thread is where ``cores`` says.

    Of the product: "spin" is an echo session and the daemon spins, "nap" the same and it naps, "copies0" to "copies2" "spin" with copies
    enqueued in each way; for "shim" a worker answers, the daemon spins. "empty 1" is one request without rows, "hand-off 1" an empty
    round: nobody in it. "bare paused ..." are bare rounds behind a pause of ``PAUSE_US``, as the worker's is one.
    """
    cases: dict[str, Case] = {}
    with Stack() as stack, ExitStack() as open_ones:
        engines = dict(_engines(stack, open_ones))
        if cores is not None:
            floor.pin(cores.engine)
            open_ones.enter_context(cores.as_engine())
        for block in range(blocks):
            say(f"hand-off, block {block + 1} of {blocks}")
            order = list(_jobs(floor, engines, rounds))
            for name, job in order if block % 2 == 0 else order[::-1]:
                job(cases.setdefault(name, Case()))
    return {name: cases[name].plain() for name in sorted(cases) if cases[name].medians}


def _engines(stack: Stack, open_ones: ExitStack) -> Iterator[tuple[str, Engine]]:
    worker = stack.start_worker("mock")
    _, spinning = start_daemon(stack, worker, "spinning", SPINNING)
    _, napping = start_daemon(stack, worker, "napping", NAPPING)
    ways: list[tuple[str, Path, Callable[..., Engine], int | None]] = [
        ("spin", spinning, with_echo, None), ("nap", napping, with_echo, None), ("shim", spinning, with_shim, None)
    ]  # fmt: skip
    ways += [(f"copies{copies}", spinning, with_echo, copies) for copies in (0, 1, 2)]
    for name, socket, make, copies in ways:
        try:
            stream = open_ones.enter_context(CudaStream.create(copies=copies))
        except StreamRefused:
            continue  # this driver cannot put copies together
        engine = make(socket, stream, Tensors(stream, max(REQUESTS) * ROWS), name=f"handoff-{name}")
        open_ones.callback(engine.close)
        engine.until_ok(decoding(1))
        yield name, engine


def _jobs(floor: Floor, engines: Mapping[str, Engine], rounds: int) -> Iterator[tuple[str, Job]]:
    for name, requests in BARE:
        yield f"bare {name} {requests}", functools.partial(_bare, floor, name, requests, rounds)
    for name in ("round", "round-together"):
        for requests in REQUESTS:
            yield (
                f"bare paused-{name} {requests}",
                functools.partial(_bare, floor, name, requests, rounds, pause_us=PAUSE_US),
            )
    for how, engine in engines.items():
        yield f"{how} hand-off 1", functools.partial(_product, engine, [], rounds)
        yield f"{how} empty 1", functools.partial(_product, engine, WITHOUT_ROWS, rounds)
        for requests in REQUESTS:
            yield f"{how} round {requests}", functools.partial(_product, engine, decoding(requests), rounds)


def _bare(floor: Floor, name: str, requests: int, rounds: int, case: Case, *, pause_us: int = 0) -> None:
    submit, total = Samples(), Samples()
    try:
        submit_us, total_us = floor.measure(name, rounds if pause_us == 0 else max(20, rounds // 4), requests, pause_us)
    except NoSuchCase:
        return  # older than CUDA 13
    submit.values.extend(submit_us)
    total.values.extend(total_us)
    case.add(submit, total, Samples(), 0)


def _product(engine: Engine, items: list[Item], rounds: int, case: Case) -> None:
    done = Rounds()
    # A worker in Python answers a hundred times as slowly as an echo.
    engine.measure(items, rounds if isinstance(engine.target, Session) else max(20, rounds // 4), done)
    case.add(done.submit, done.total, done.own, done.failed)
