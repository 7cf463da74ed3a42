# SPDX-License-Identifier: Apache-2.0
"""Echo rounds at an engine's pace, behind GPU work: what napping costs a round, and what it saves of a core."""

from __future__ import annotations

import time

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from bench.gpu.load import Load
from bench.gpu.product import NAPPING, SPINNING, Engine, start_daemon, with_echo
from bench.gpu.step import ROWS, Tensors, decoding, fill
from dsv41_rehearse.proc import threads_cpu_ns
from dsv41_rehearse.samples import Samples
from dsv41_rehearse.stack import Child, Stack
from engine_shim.cudastream import CudaStream
from hostflag.verdicts import Verdict


RATE: Final = 25.0
WARM: Final = 25  # rounds until the daemon has learned when to look
REQUESTS: Final = 3


@dataclass
class Pace:
    """``inside``: from before the copies to the reply taken, in the stream, us. ``decided``: from seen gathered to decided."""

    inside: Samples = field(default_factory=Samples)
    decided: Samples = field(default_factory=Samples)
    failed: int = 0


def measure(load: Load, seconds: float) -> dict[str, Any]:
    """Return it for a spinning and a napping daemon, with the share of a core that each takes, percent."""
    with Stack() as stack:
        worker = stack.start_worker("mock")
        found = {}
        for name, flags in (("spin", SPINNING), ("nap", NAPPING)):
            daemon, socket = start_daemon(stack, worker, name, flags)
            found[name] = _at_pace(daemon, socket, load, seconds)
        return found


def _at_pace(daemon: Child, socket: Path, load: Load, seconds: float) -> dict[str, Any]:
    torch_stream = torch.cuda.Stream()
    with CudaStream(torch_stream) as stream:
        engine = with_echo(socket, stream, Tensors(stream, REQUESTS * ROWS), name="pace")
        try:
            engine.until_ok(decoding(REQUESTS))
            _rounds(engine, torch_stream, load, WARM)
            before, began = threads_cpu_ns(daemon.pid), time.monotonic()
            pace = _rounds(engine, torch_stream, load, int(seconds * RATE))
            share = (threads_cpu_ns(daemon.pid) - before) / (time.monotonic() - began) / 1e7
        finally:
            engine.close()
    return {
        "in_stream_us": asdict(pace.inside.spread()), "seen_to_decided_us": asdict(pace.decided.spread()),
        "cpu_percent": round(share, 3), "failed": pace.failed, "rate": RATE, "gpu_ms": load.gpu_ms, "requests": REQUESTS,
    }  # fmt: skip


def _rounds(engine: Engine, torch_stream: Any, load: Load, count: int) -> Pace:
    pace = Pace()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    fill(engine.batch, decoding(REQUESTS))
    begin = time.monotonic()
    for index in range(count):
        time.sleep(max(0.0, begin + index / RATE - time.monotonic()))
        with torch.cuda.stream(torch_stream):
            load.launch()
            first.record(torch_stream)
            number = engine.target.submit(engine.batch).round
            last.record(torch_stream)
        last.synchronize()
        engine.target.settle()
        record = None if number is None else engine.target.record(number)
        if record is None or record.verdict is not Verdict.OK:
            pace.failed += 1
            continue
        pace.inside.add(first.elapsed_time(last) * 1e3)
        pace.decided.add((record.timing.decided_ns - record.timing.seen_ns) / 1e3)
    return pace
