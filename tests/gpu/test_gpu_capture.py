# SPDX-License-Identifier: Apache-2.0
"""A graph that the engine captures is not spoilt by what the shim's own threads do with the driver meanwhile, in torch's strictest mode."""

from __future__ import annotations

import os
import threading

from collections.abc import Callable
from pathlib import Path

from gpu_harness import GEOMETRY, daemon, torch, worker

from engine_shim import CudaDriver, CudaStream
from engine_shim.selftest import SelfTest
from hostflag.messages import EngineIdentity


def captured_beside(what: Callable[[], None]) -> None:
    """Capture a graph in this thread; in the middle of it ``what`` is done in another. The graph has to be whole."""
    values = torch.zeros(4, device="cuda")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    torch.cuda.synchronize()
    thread = threading.Thread(target=what)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
        values.add_(1)
        thread.start()
        thread.join()
        values.add_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert values.tolist() == [3.0] * 4


def test_a_whole_self_test(short_dir: Path) -> None:
    reports = []

    def tried() -> None:
        driver = CudaDriver()
        driver.use_primary(0)
        with CudaStream.create(driver=driver) as stream:
            identity = EngineIdentity(name="gpu-capture", pid=os.getpid())
            reports.append(SelfTest(stream, path, geometry=GEOMETRY, model="test", engine=identity).run())

    with worker() as endpoint, daemon(short_dir, endpoint) as process:
        path = process.path
        captured_beside(tried)
    (report,) = reports
    assert report.passed, report.reason


def test_memory_that_comes_and_goes() -> None:
    def used() -> None:
        driver = CudaDriver()
        driver.use_primary(0)
        with CudaStream.create(driver=driver) as stream:
            stream.free(stream.alloc(1 << 20))
            assert stream.wait(stream.marker(), 5.0)

    captured_beside(used)
