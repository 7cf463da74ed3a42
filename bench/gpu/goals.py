# SPDX-License-Identifier: Apache-2.0
"""What the run was to show, and what it did: ratios of one run, side by side. A goal that is missed is said, and fails nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dsv41_rehearse.bench_show import Goal


def goals(report: Mapping[str, Any]) -> list[Goal]:
    """Return every goal with its measurement; None where that part was not run."""
    return [
        *_handoff(report.get("handoff", {})),
        *_pace(report.get("pace", {})),
        *_overlap(report.get("overlap", {}), at(report, "handoff", "bare round 3", "total_us", "p50")),
        *_rest(report),
    ]


def at(values: Any, *keys: str) -> float | None:
    """Return a number from nested mappings, None where it is not there."""
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return float(values) if isinstance(values, int | float) else None


def ratio(above: float | None, below: float | None) -> float | None:
    """Return a ratio, None where a part is missing."""
    return None if above is None or not below else round(above / below, 4)


def _less(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else round(above - below, 2)


def floor_of(cases: Mapping[str, Any], case: str) -> str:
    """Return the bare case that makes the driver calls of the product: its flat copies in one call, where that was measured."""
    name, requests = case.split()
    together = f"bare {name}-together {requests}"
    return together if together in cases else f"bare {case}"


def _handoff(cases: Mapping[str, Any]) -> Iterator[Goal]:
    def total(case: str) -> float | None:
        return at(cases, case, "total_us", "p50")

    without_rows, three = total(floor_of(cases, "calls 1")), total(floor_of(cases, "round 3"))
    yield Goal(
        "empty round, daemon spinning: total / bare C write, wait, write",
        1.3,
        ratio(total("spin hand-off 1"), total("bare empty 1")),
    )
    yield Goal(
        "a request without rows, daemon spinning: total / bare C with the same calls",
        1.3,
        ratio(total("spin empty 1"), without_rows),
    )
    yield Goal(
        "round of 3, daemon spinning: total / bare C with the same calls", 1.3, ratio(total("spin round 3"), three)
    )
    yield Goal(
        "round of 3, daemon napping, back to back: total less bare C, us", 25.0, _less(total("nap round 3"), three)
    )
    for how, bare, text in (("spin", "round", "back to back"), ("shim", "paused-round", "behind a worker's pause")):
        ours = at(cases, f"{how} round 3", "submit_us", "p50")
        submit = at(cases, floor_of(cases, f"{bare} 3"), "submit_us", "p50")
        yield Goal(f"submit of 3 from Python, {text}: p50 / bare C the same", 1.5, ratio(ours, submit))
        yield Goal(f"submit of 3 from Python, {text}: p99, us", 60.0, at(cases, f"{how} round 3", "submit_us", "p99"))


def _pace(pace: Mapping[str, Any]) -> Iterator[Goal]:
    nap, spin = at(pace, "nap", "in_stream_us", "p50"), at(pace, "spin", "in_stream_us", "p50")
    yield Goal("25 rounds a second, napping less spinning: p50 in the stream, us", 25.0, _less(nap, spin))
    yield Goal("25 rounds a second, napping: % of a core", 3.0, at(pace, "nap", "cpu_percent"))


def _overlap(overlap: Mapping[str, Any], bare_us: float | None) -> Iterator[Goal]:
    for column in overlap.get("step", []):
        name = f"worker {column['worker_ms']:g} ms"
        ours, none = at(column, "ours", "step_ms", "p50"), at(column, "none", "step_ms", "p50")
        network = at(column, "ours", "rounds", "seen_to_decided_ms")
        # What cannot overlap: the worker and the way to it, and the hand-off as bare C does it.
        least = None if none is None or network is None else none + network + (bare_us or 0.0) / 1e3
        yield Goal(
            f"{name}: step p50 / (step without drafts + seen to decided + bare hand-off)", 1.01, ratio(ours, least)
        )
        yield Goal(f"{name}: step p50 / synchronous", 1.0, ratio(ours, at(column, "sync", "step_ms", "p50")))
    busy = overlap.get("busy", {})
    for first, how in ((overlap.get("first_token", {}), ""), (busy.get("first_token", {}), " with a busy interpreter")):
        ours, sync = at(first, "ours", "first_token_ms", "p50"), at(first, "sync", "first_token_ms", "p50")
        yield Goal(f"time to first token{how} / synchronous", 1.005, ratio(ours, sync))


def _rest(report: Mapping[str, Any]) -> Iterator[Goal]:
    recovery = report.get("recovery", {})
    calls = recovery.get("calls_in_adoption")
    yield Goal("driver calls from a loss to the next session", 0, None if calls is None else float(sum(calls.values())))
    depth = report.get("depth", {})
    lost = None if "run" not in depth else float(depth["launches"] - depth["run"] + (depth["verdict"] != "OK"))
    yield Goal("3,000 launches behind a park: launches that were lost, and rounds that were not OK", 0, lost)
    asked = report.get("few_connections")
    taken = None if asked is None else float(sum(not asked[few].get("refusal") for few in ("1", "2", "3")))
    yield Goal("CUDA_DEVICE_MAX_CONNECTIONS of 1, 2, 3: taken without a refusal", 0, taken)
