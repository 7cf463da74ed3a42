# SPDX-License-Identifier: Apache-2.0
"""The report of bench.gpu as a picture. Needs matplotlib."""

from __future__ import annotations

import importlib

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.gpu.goals import at, floor_of
from bench.gpu.handoff import REQUESTS
from bench.gpu.waynames import WAYS, WORDS


COLOURS: Final = ("#7b8794", "#d1242f", "#bf8700", "#1f6feb")
DPI: Final = 144


def draw(path: Path, report: Mapping[str, Any]) -> None:
    """Write the picture. Raises ImportError without matplotlib, OSError where the file cannot be written."""
    # By name: an optional extra, which type checkers need not find.
    figures: Any = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(13, 8.5), layout="constrained")
    figure.suptitle(
        f"{report['machine']}, driver {report['driver']}, CUDA {report['cuda']}, {report['date']}", fontsize=10
    )
    (handoff, submit), (steps, first) = figure.subplots(2, 2)
    _totals(handoff, report.get("handoff", {}))
    _submits(submit, report.get("handoff", {}))
    _steps(steps, report.get("overlap", {}))
    _first(first, report.get("overlap", {}))
    figure.savefig(path, dpi=DPI, format="png")


def _bars(axes: Any, groups: Sequence[str], series: Mapping[str, Sequence[float | None]], title: str) -> None:
    width = 0.8 / max(1, len(series))
    for index, (name, values) in enumerate(series.items()):
        places = [group + (index - (len(series) - 1) / 2) * width for group in range(len(groups))]
        drawn = axes.bar(
            places, [value or 0.0 for value in values], width, label=name, color=COLOURS[index % len(COLOURS)]
        )
        axes.bar_label(drawn, fmt="%.3g", fontsize=7)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    if len(series) > 1:
        axes.legend(fontsize=8, frameon=False)


def _totals(axes: Any, cases: Mapping[str, Any]) -> None:
    names = ["empty", *(f"{requests} requests" for requests in REQUESTS)]
    keys = ["empty 1", *(f"round {requests}" for requests in REQUESTS)]
    floors = [floor_of(cases, key.replace("empty", "calls")) for key in keys]
    series = {
        "bare C, same calls": [at(cases, floor, "total_us", "p50") for floor in floors],
        "product, daemon napping": [at(cases, f"nap {key}", "total_us", "p50") for key in keys],
        "product, daemon spinning": [at(cases, f"spin {key}", "total_us", "p50") for key in keys],
    }
    _bars(axes, names, series, "round, submit to consumed without a network, p50, us")


def _submits(axes: Any, cases: Mapping[str, Any]) -> None:
    series = {
        word: [at(cases, floor_of(cases, f"round {requests}") if how == "bare" else f"{how} round {requests}", "submit_us", key) for requests in REQUESTS]
        for how, key, word in (("bare", "p50", "bare C, p50"), ("bare", "p99", "bare C, p99"), ("shim", "p99", "from Python, p99"), ("shim", "p50", "from Python, p50"))
    }  # fmt: skip
    _bars(axes, [f"{requests} requests" for requests in REQUESTS], series, "submit, us of the engine's thread")


def _steps(axes: Any, overlap: Mapping[str, Any]) -> None:
    columns = overlap.get("step", [])
    series = {WORDS[way]: [at(column, way, "step_ms", "p50") for column in columns] for way in WAYS}
    title = f"step p50, ms: {at(overlap, 'gpu_ms') or 0:.1f} ms of GPU work, {at(overlap, 'cpu_ms') or 0:.1f} ms of launching"
    _bars(axes, [f"worker {column['worker_ms']:g} ms" for column in columns], series, title)
    values = [value for found in series.values() for value in found if value]
    if values:
        axes.set_ylim(min(values) * 0.8, max(values) * 1.05)


def _first(axes: Any, overlap: Mapping[str, Any]) -> None:
    found = {"launching alone": overlap, "and Python work in each step": overlap.get("busy", {})}
    groups = [name for name, one in found.items() if "first_token" in one]
    firsts = [found[name]["first_token"] for name in groups]
    series = {WORDS[way]: [at(first, way, "first_token_ms", "p50") for first in firsts] for way in WAYS}
    _bars(axes, groups, series, "time to first token, ms, mean of 3 prompts that arrive together")
    there = [value for values in series.values() for value in values if value]
    if there:
        axes.set_ylim(min(there) * 0.9, max(there) * 1.03)
