# SPDX-License-Identifier: Apache-2.0
"""What a self-test found, for people and as JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec


FORMAT: Final = 1
PACKAGES: Final = ("dsv41-proxyd", "vllm", "torch", "triton", "cupy")  # looked up, never imported
OS_RELEASE: Final = Path("/etc/os-release")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was tried: ``detail`` is what was found, or why it failed."""

    name: str
    passed: bool
    detail: str
    ms: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Times of ``rounds`` rounds in microseconds. submit: in the call. total: from its begin until the reply was copied."""

    rounds: int
    submit_p50: float
    submit_p99: float
    total_p50: float
    total_p99: float
    total_max: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """
    ``reason``: why rounds must not be parked here; None where they may. ``stuck``: something did not come back, its memory is kept.

    ``attributes``: of the device, by name. ``image``: what software this holds for. ``calls``: of the driver, by function.
    """

    format: int = FORMAT
    passed: bool
    reason: str | None
    stuck: bool
    device: str
    capability: str
    driver: int
    library: str
    attributes: dict[str, int]
    image: dict[str, str]
    daemon: dict[str, str]
    steps: tuple[Step, ...]
    latencies: dict[str, Latency]
    calls: dict[str, int]
    when: str

    def json(self) -> str:
        """Return it as JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    def text(self) -> str:
        """Return it for people."""
        lines = [
            f"{self.device} (compute capability {self.capability}), driver API {self.driver // 1000}.{self.driver % 1000 // 10}",
            ", ".join(f"{name} {version}" for name, version in self.image.items()),
            *(
                f"{'ok' if step.passed else 'FAILED':7}{step.name:14}{step.ms:9.1f} ms  {step.detail}"
                for step in self.steps
            ),
        ]
        lines += [f"{name:20}{_times(latency)}" for name, latency in self.latencies.items()]
        verdict = "rounds may be parked on this device" if self.passed else f"rounds must be synchronous: {self.reason}"
        return "\n".join([*lines, verdict])


def latency_of(submits: Sequence[int], totals: Sequence[int]) -> Latency:
    """Return the Latency of times in ns."""
    return Latency(
        rounds=len(totals),
        submit_p50=_quantile(submits, 0.50),
        submit_p99=_quantile(submits, 0.99),
        total_p50=_quantile(totals, 0.50),
        total_p99=_quantile(totals, 0.99),
        total_max=_quantile(totals, 1.0),
    )


def image() -> dict[str, str]:
    """Return the versions of what a report holds for."""
    found = {"kernel": platform.release(), "machine": platform.machine(), "python": platform.python_version()}
    if system := _system():
        found["system"] = system
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if loading := os.environ.get("CUDA_MODULE_LOADING"):
        found["CUDA_MODULE_LOADING"] = loading
    return found


def _system() -> str | None:
    try:
        lines = OS_RELEASE.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition("=")[2].strip('"') for line in lines if line.startswith("PRETTY_NAME=")), None)


def _quantile(times: Sequence[int], q: float) -> float:
    ordered = sorted(times)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1e3, 2)


def _times(latency: Latency) -> str:
    return (
        f"submit p50 {latency.submit_p50:.1f} us, p99 {latency.submit_p99:.1f}; round p50 {latency.total_p50:.1f} us, "
        f"p99 {latency.total_p99:.1f}, max {latency.total_max:.1f} ({latency.rounds} rounds)"
    )
