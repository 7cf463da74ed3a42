# SPDX-License-Identifier: Apache-2.0
"""The same through the whole product: in every round something is loaded or freed while the stream is parked."""

from __future__ import annotations

import functools
import importlib.util
import time

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.gpu.product import Engine, with_shim
from bench.gpu.step import ROWS, Tensors, decoding, fill
from dsv41_rehearse.stack import Stack
from engine_shim.cudadriver import CudaDriver
from engine_shim.cudastream import CudaStream


ROUNDS: Final = 30
WORKER_MS: Final = 20.0
# Functions of torch that nothing here has called before: each brings kernels that are loaded when they are first launched.
FIRST: Final = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2",
    "expm1", "floor", "frac", "log", "log10", "log1p", "log2", "logit", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip


def rounds() -> dict[str, Any]:
    """Return what became of ``ROUNDS`` rounds with a fresh module load each, and of as many with a first launch each."""
    CudaDriver().use_primary(0)
    with Stack() as stack, CudaStream.create() as stream:
        daemon = stack.start_daemon(stack.start_worker("mock", delay_ms=WORKER_MS))
        tensors = Tensors(stream, ROWS)
        engine = with_shim(stack.socket, stream, tensors, name="deadlocks")
        try:
            engine.until_ok(decoding(1))
            done = {"fresh_module": _parked(engine, iter([stream.load_module] * ROUNDS))}
            if importlib.util.find_spec("torch") is not None:
                done["first_torch_launch"] = _parked(engine, _first_launches())
            status = engine.shim.status()
        finally:
            engine.close()
        maps = Path(f"/proc/{daemon.pid}/maps").read_text()
        return {
            **done, "worker_ms": WORKER_MS, "daemon_maps_libcuda": "libcuda" in maps, "losses": dict(status.losses),
        }  # fmt: skip


def _parked(engine: Engine, calls: Iterator[Callable[[], object]]) -> dict[str, Any]:
    """Do a round a call, and make the call while it is parked."""
    call_ms, verdicts, still_parked = [], [], 0
    for call in calls:
        fill(engine.batch, decoding(1))
        ref = engine.shim.submit(engine.batch).ref
        if ref is None:
            verdicts.append("NO_ROUND")
            time.sleep(0.1)
            continue
        time.sleep(0.002)  # the stream is parked by now, and for another WORKER_MS
        still_parked += not engine.shim.consumed(ref)
        began = time.perf_counter()
        call()
        call_ms.append(round((time.perf_counter() - began) * 1e3, 3))
        engine.wait(ref)
        verdict = engine.shim.verdict(ref)
        verdicts.append("none" if verdict is None else verdict.name)
    return {"rounds": len(verdicts), "ok": verdicts.count("OK"), "parked_at_call": still_parked, "call_ms": call_ms}


def _first_launches() -> Iterator[Callable[[], object]]:
    """Yield calls that launch a kernel which this process has never launched, on torch's own stream."""
    import torch

    operand = torch.full((64,), 0.5, device="cuda")
    torch.cuda.synchronize()
    for name in FIRST:
        yield functools.partial(getattr(torch, name), operand)
