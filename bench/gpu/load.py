# SPDX-License-Identifier: Apache-2.0
"""GPU work as an engine has it: many small kernels launched one by one from Python, then long ones, on a stream of torch's."""

from __future__ import annotations

import time

from typing import Any, Final

import torch


CYCLES: Final = 2_000_000  # of a sleep by which sleeping is calibrated
HELD_MS: Final = 40.0  # the stream is held so long while a step is enqueued, so that its kernels stand in line
TRIES: Final = 4


class Load:
    """
    A step of about ``gpu_ms`` of GPU work and ``cpu_ms`` of launching. Calibrated once, on a GPU that nobody else uses.

    ``stream``: torch's. ``kernels``: small launches a step. ``counter``: int64[1] on the device, one more each small kernel.
    """

    def __init__(self, gpu_ms: float, cpu_ms: float) -> None:
        self.stream: Any = torch.cuda.Stream()
        self.counter: Any = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._rows: Any = torch.ones(64, 256, device="cuda")
        self.kernels = 100
        self._cycles = 0
        with torch.cuda.stream(self.stream):
            self._warm()
            per_kernel_ms = self._launching_ms(400) / 400
            self.kernels = max(1, round(cpu_ms / per_kernel_ms))
            self._cycles = self._fit(gpu_ms)
        self.cpu_ms = self.measure_cpu_ms()
        self.gpu_ms = self.measure_gpu_ms()

    def launch(self) -> None:
        """Enqueue a step: small kernels first, as an engine prepares its inputs, then the long work."""
        self.small(self.kernels)
        if self._cycles:
            torch.cuda._sleep(self._cycles)  # noqa: SLF001 - the one kernel of torch that takes a time

    def small(self, count: int) -> None:
        """Enqueue so many small kernels. The stream must be torch's current one."""
        rows, counter = self._rows, self.counter
        for index in range(count):
            rows[index & 63].mul_(1.0)  # a view and a kernel: what such a line costs in Python
        counter.add_(count)

    def measure_cpu_ms(self) -> float:
        """Return what launching a step takes, ms, while the stream is busy and takes it all."""
        with torch.cuda.stream(self.stream):
            return min(self._launching_ms(self.kernels) for _ in range(TRIES))

    def measure_gpu_ms(self) -> float:
        """Return what a step's kernels take when they stand in line, ms."""
        with torch.cuda.stream(self.stream):
            return sorted(self._step_gpu_ms() for _ in range(TRIES))[TRIES // 2]

    def _warm(self) -> None:
        for _ in range(3):
            self.small(200)
            torch.cuda._sleep(100 * CYCLES)  # noqa: SLF001 - clocks up
            self.stream.synchronize()

    def _launching_ms(self, count: int) -> float:
        torch.cuda._sleep(10 * CYCLES)  # noqa: SLF001 - as behind other work
        began = time.perf_counter()
        self.small(count)
        taken = (time.perf_counter() - began) * 1e3
        self.stream.synchronize()
        return taken

    def _between(self, work: Any) -> float:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record(self.stream)
        work()
        last.record(self.stream)
        last.synchronize()
        return float(first.elapsed_time(last))

    def _step_gpu_ms(self) -> float:
        if self._cycles:
            torch.cuda._sleep(int(self._cycles * 0.5))  # noqa: SLF001 - until all of it is enqueued
        return self._between(self.launch)

    def _fit(self, gpu_ms: float) -> int:
        per_cycle = self._between(lambda: torch.cuda._sleep(20 * CYCLES)) / (20 * CYCLES)  # noqa: SLF001
        self._cycles = int(HELD_MS / per_cycle)
        for _ in range(TRIES):
            self._cycles = max(1, self._cycles + int((gpu_ms - self._step_gpu_ms()) / per_cycle))
        return self._cycles
