# SPDX-License-Identifier: Apache-2.0
"""What a lost daemon costs: registration, adoption, and from SIGKILL to the next round with drafts."""

from __future__ import annotations

import os
import time

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from bench.gpu.product import Engine, ProductError, with_shim
from bench.gpu.step import GEOMETRY, ROWS, Tensors, decoding, fill
from dsv41_rehearse.samples import Few
from dsv41_rehearse.stack import Stack
from engine_shim.cudastream import CudaStream
from engine_shim.region import Region
from hostflag import region as regions
from hostflag.verdicts import Verdict


REGIONS: Final = 5
STEP_S: Final = 0.001
BACK_S: Final = 20.0


def measure(kills: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Return times in ms; ``calls_in_adoption``: driver calls made between a loss and the next session, none expected."""
    with Stack() as stack, CudaStream.create() as stream:
        registered = Few.of(_register_ms(stream) for _ in range(REGIONS))
        worker = stack.start_worker("mock")
        daemon = stack.start_daemon(worker)
        engine = with_shim(stack.socket, stream, Tensors(stream, 3 * ROWS), name="recovery")
        kept = stream.kept
        adopted: list[float] = []
        back: list[float] = []
        calls: dict[str, int] = {}
        try:
            engine.until_ok(decoding(3))
            for index in range(kills):
                say(f"recovery, kill {index + 1} of {kills}")
                if index % 2:
                    daemon, took = _drafts_again(stack, worker, daemon, engine)
                    back.append(took)
                else:
                    daemon, took = _adopted(stack, worker, daemon, engine, calls)
                    adopted.append(took)
            status = engine.shim.status()
        finally:
            engine.close()
        return {
            "register_region_ms": asdict(registered), "region_mib": round(_region_bytes() / 2**20, 1),
            "adoption_ms": asdict(Few.of(adopted)), "kill_to_drafts_ms": asdict(Few.of(back)), "calls_in_adoption": calls,
            "registrations_after_the_first": stream.kept - kept, "losses": dict(status.losses), "adoptions": status.adoptions,
        }  # fmt: skip


def _register_ms(stream: CudaStream) -> float:
    fd = regions.create(GEOMETRY)
    try:
        began = time.perf_counter()
        region = Region(fd, stream, GEOMETRY, 0)
        took = (time.perf_counter() - began) * 1e3
        region.close()
        return took
    finally:
        os.close(fd)


def _region_bytes() -> int:
    fd = regions.create(GEOMETRY)
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _adopted(stack: Stack, worker: str, daemon: Any, engine: Engine, calls: dict[str, int]) -> tuple[Any, float]:
    """Kill while nothing is submitted. Returns the next daemon, and the time from its ready to the next session."""
    before, old = engine.stream.driver.calls(), engine.shim.session
    daemon.kill()
    stack.forget(daemon)
    daemon = stack.start_daemon(worker)
    if not engine.shim.wait_session(BACK_S, other_than=old):
        raise ProductError(f"no session {BACK_S:g} s after the next daemon: {engine.shim.status()}")
    took = (time.monotonic_ns() - daemon.ready_ns) / 1e6
    for name, count in engine.stream.driver.calls().items():
        if count != before.get(name, 0):
            calls[name] = calls.get(name, 0) + count - before.get(name, 0)
    engine.until_ok(decoding(3))
    return daemon, took


def _drafts_again(stack: Stack, worker: str, daemon: Any, engine: Engine) -> tuple[Any, float]:
    """Kill while the engine steps; a daemon is started at once, as systemd does. Returns it, and the time to the first OK, ms."""
    fill(engine.batch, decoding(3))
    sent_ns = daemon.kill()
    stack.forget(daemon)
    # Not awaited: the engine steps on meanwhile.
    endpoint = ["--socket", str(stack.socket), "--worker", worker, "--metrics", "127.0.0.1:0", "--log-format", "json"]
    daemon = stack.start("daemon", "proxyd", endpoint)
    until = time.monotonic() + BACK_S
    while time.monotonic() < until:
        ref = engine.shim.submit(engine.batch).ref
        if ref is not None:
            engine.wait(ref)
            if engine.shim.verdict(ref) is Verdict.OK:
                return daemon, (time.monotonic_ns() - sent_ns) / 1e6
        time.sleep(STEP_S)
    raise ProductError(f"no drafts {BACK_S:g} s after the kill: {engine.shim.status()}")
