# SPDX-License-Identifier: Apache-2.0
"""A parked stream beside others, and what stands behind it: in bare C, and through the product."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from pathlib import Path
from typing import Any, Final

from bench.gpu.bare.build import BareError, once
from bench.gpu.product import start_daemon, with_shim
from bench.gpu.step import ROWS, Tensors, decoding, fill
from dsv41_rehearse.stack import Stack
from engine_shim.cudastream import MAX_CONNECTIONS, CudaStream


FORMS: Final = ("none", "batched", "wait32", "wait64", "priority", "graph", "hostfunc", "kernel")
FEW, MANY = 11, 100  # streams beside the parked one
PROGRAM_S: Final = 10.0
LAUNCHES: Final = 3000
WORKER_MS: Final = 100.0
NO_WORKER: Final = "tcp://127.0.0.1:9"  # echo rounds need none
CONNECTIONS: Final = ("1", "2", "3", "4")
SELF_TEST_S: Final = 60.0
REFUSAL: Final = """
import json, os, sys
from pathlib import Path
from bench.gpu.step import GEOMETRY, MODEL
from engine_shim.cudadriver import CudaDriver
from engine_shim.cudastream import CudaStream
from engine_shim.selftest import SelfTest
from hostflag.messages import EngineIdentity
CudaDriver().use_primary(0)
stream = CudaStream.create()
refusal, stream.async_refusal = stream.async_refusal, None
report = SelfTest(stream, Path(sys.argv[1]), geometry=GEOMETRY, model=MODEL, engine=EngineIdentity(name="connections", pid=os.getpid())).run()
print(json.dumps({"refusal": refusal, "self_test": report.reason, "steps": {step.name: step.detail for step in report.steps}}), flush=True)
os._exit(0)  # stuck or not
"""


def bare(program: Path) -> dict[str, Any]:
    """Return who gets through beside a parked stream, by form of waiting and connections; what a park takes; registrations."""
    tried = [(connections, form, FEW) for connections in (None, "1") for form in FORMS]
    tried += [
        (connections, "batched", count)
        for count in (FEW, MANY)
        for connections in ("2", "3", "4", "8", "16", "32", None)
    ]
    neighbours = [_neighbours(program, form, connections, count) for connections, form, count in tried]
    return {"neighbours": neighbours, "depth": _tried(program, "depth"), "register": _tried(program, "register")}


def _neighbours(program: Path, form: str, connections: str | None, count: int) -> dict[str, Any]:
    variables = {} if connections is None else {MAX_CONNECTIONS: connections}
    try:
        return once(program, ["neighbours", form, str(count)], timeout_s=PROGRAM_S, variables=variables)
    except BareError as error:
        return {"form": form, "max_connections": connections or "unset", "neighbours": count, "error": str(error)}


def _tried(program: Path, what: str) -> dict[str, Any]:
    try:
        return once(program, [what], timeout_s=PROGRAM_S)
    except BareError as error:
        return {"error": str(error)}


def few_connections() -> dict[str, Any]:
    """
    Return, by number of connections, what the product says to it at once, and what its self-test finds where that look is left out.

    None: nothing speaks against it.
    """
    with Stack() as stack:
        _, socket = start_daemon(stack, NO_WORKER, "connections")
        return {connections: _asked(socket, connections) for connections in CONNECTIONS}


def _asked(socket: Path, connections: str) -> dict[str, Any]:
    try:
        ended = subprocess.run(
            [sys.executable, "-c", REFUSAL, str(socket)],
            env=os.environ | {MAX_CONNECTIONS: connections},
            capture_output=True,
            text=True,
            check=False,
            timeout=SELF_TEST_S,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not over after {SELF_TEST_S:g} s"}
    if ended.returncode != 0:
        return {"error": ended.stderr.strip()[-500:]}
    said: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return said


def depth() -> dict[str, Any]:
    """
    Return what becomes of a round while the engine's thread launches more than a parked stream takes.

    ``launching_ms``: what the launches took, against the worker's ``worker_ms``: the thread was held up until the release.
    """
    import torch

    torch_stream = torch.cuda.Stream()
    counter = torch.zeros(1, dtype=torch.int64, device="cuda")
    with Stack() as stack, CudaStream(torch_stream) as stream:
        stack.start_daemon(stack.start_worker("mock", delay_ms=WORKER_MS))
        engine = with_shim(stack.socket, stream, Tensors(stream, ROWS), name="depth")
        try:
            engine.until_ok(decoding(1))
            with torch.cuda.stream(torch_stream):
                counter.add_(0)
                torch_stream.synchronize()
                fill(engine.batch, decoding(1))
                ref = engine.shim.submit(engine.batch).ref
                if ref is None:
                    return {"error": f"no round: {engine.shim.status()}"}
                began = time.perf_counter()
                for _ in range(LAUNCHES):
                    counter.add_(1)
                launching_ms = (time.perf_counter() - began) * 1e3
            engine.wait(ref)
            torch_stream.synchronize()
            verdict = engine.shim.verdict(ref)
            return {
                "launches": LAUNCHES, "run": int(counter.item()), "worker_ms": WORKER_MS, "launching_ms": round(launching_ms, 1),
                "verdict": "none" if verdict is None else verdict.name,
            }  # fmt: skip
        finally:
            engine.close()
