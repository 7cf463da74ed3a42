# SPDX-License-Identifier: Apache-2.0
"""The report of bench.gpu as tables: for the terminal, and in Markdown for docs/PERFORMANCE.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.gpu.goals import at, floor_of, ratio
from bench.gpu.handoff import REQUESTS
from bench.gpu.waynames import WAYS, WORDS


BUSY_NOTE: Final = (
    "The work stands for what an engine's thread does in Python beside its launches: scheduler, detokenizer, sampling metadata. It is the same number "
    "of turns of a loop in all four ways. The tokens of a step and its round come of the same kernels: the thread wakes when the round of the step "
    "before is gathered, launches, and has this work to do while the worker drafts, so that a proxy in its process waits for the interpreter lock when "
    "the reply is there. It is done before the submit: synchronous rounds have it behind the GPU's work too, and not on top of it."
)


@dataclass(frozen=True)
class Table:
    """``rows``: as many cells each as ``head``; the first is text, the others numbers as text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """Yield a table for each part that was run."""
    if cases := report.get("handoff"):
        yield _empty(cases)
        yield _whole(cases)
        yield _copies(cases)
    if pace := report.get("pace"):
        yield _pace(pace)
    if overlap := report.get("overlap"):
        yield _steps(overlap)
        yield _budget(overlap)
        if first := overlap.get("first_token"):
            yield _first(first)
        if busy := overlap.get("busy"):
            yield _busy(busy)
            yield _first(busy["first_token"], "With a busy interpreter: time")
    if parked := report.get("parked"):
        yield _neighbours(parked["neighbours"])
        yield _limits(parked, report.get("depth", {}))
    if asked := report.get("few_connections"):
        yield _connections(asked)
    if recovery := report.get("recovery"):
        yield _recovery(recovery)
    if goals := report.get("goals"):
        yield _goals(goals)


def number(value: float | None, digits: int = 1) -> str:
    """Return a number for people, "-" for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def _pair(spread: Mapping[str, Any], key: str) -> str:
    p50, p99 = at(spread, key, "p50"), at(spread, key, "p99")
    return f"{number(p50)} / {number(p99)}"


def _empty(cases: Mapping[str, Any]) -> Table:
    named = {
        "bare empty 1": "bare C: write and wait in one call, write", "bare unbatched 1": "bare C: write, wait, write",
        "bare chain 1": "bare C: the first, back to back in the stream", "bare hostfunc 1": "cuLaunchHostFunc, write",
        "bare event 1": "event, waited for spinning, write", "bare blocking 1": "event, waited for asleep, write",
        "spin hand-off 1": "the product: an empty round, daemon spinning", "nap hand-off 1": "the same, daemon napping",
        "shim hand-off 1": "the same through a shim, daemon spinning",
        "bare calls 1": "bare C: the calls of a request without rows", "bare calls-together 1": "bare C: the same, flat copies in one call",
        "spin empty 1": "the product: a request without rows, daemon spinning", "nap empty 1": "the same, daemon napping",
        "shim empty 1": "the same with a worker, daemon spinning",
    }  # fmt: skip
    floor = at(cases, "bare empty 1", "total_us", "p50")
    rows = [
        (
            text,
            _pair(cases[case], "submit_us"),
            _pair(cases[case], "total_us"),
            number(ratio(at(cases, case, "total_us", "p50"), floor), 2),
        )
        for case, text in named.items()
        if case in cases
    ]
    return Table("Hand-off without rows, us", ("", "submit p50 / p99", "total p50 / p99", "x the first"), rows)


def _whole(cases: Mapping[str, Any]) -> Table:
    rows = []
    for requests in REQUESTS:
        spin, nap, shim = (cases.get(f"{how} round {requests}", {}) for how in ("spin", "nap", "shim"))
        bare, paused = (cases.get(floor_of(cases, f"{how} {requests}"), {}) for how in ("round", "paused-round"))
        floor = at(bare, "total_us", "p50")
        rows.append((
            str(requests), _pair(bare, "submit_us"), _pair(spin, "submit_us"),
            number(ratio(at(spin, "submit_us", "p50"), at(bare, "submit_us", "p50")), 2),
            _pair(paused, "submit_us"), _pair(shim, "submit_us"),
            number(ratio(at(shim, "submit_us", "p50"), at(paused, "submit_us", "p50")), 2),
            _pair(bare, "total_us"), _pair(spin, "total_us"), number(ratio(at(spin, "total_us", "p50"), floor), 2),
            _pair(nap, "total_us"), _pair(shim, "total_us"),
        ))  # fmt: skip
    head = (
        "requests", "submit, bare C", "from Python", "x", "bare C, paused", "with a worker", "x",
        "total, bare C", "spinning", "x", "napping", "with a worker",
    )  # fmt: skip
    copies = (
        "together, as the product's"
        if "together" in floor_of(cases, "round 3")
        else "one by one, the product's together"
    )
    return Table(
        f"Whole rounds, 6 rows of 30,720 bytes a request, us, p50 / p99; bare C's flat copies {copies}", head, rows
    )


def _copies(cases: Mapping[str, Any]) -> Table:
    named = {"copies0": "one by one", "copies1": "flat copies in one call", "copies2": "all copies in one call"}
    rows = [
        (f"{text}, {requests} requests", _pair(case, "submit_us"), _pair(case, "total_us"))
        for requests in (3, 16)
        for how, text in named.items()
        if (case := cases.get(f"{how} round {requests}"))
    ]
    rows += [
        (f"bare C, {text}, {requests} requests", _pair(case, "submit_us"), _pair(case, "total_us"))
        for requests in (3, 16)
        for how, text in (("round", "one by one"), ("round-together", "flat copies in one call"))
        if (case := cases.get(f"bare {how} {requests}"))
    ]
    return Table("How the copies of a round are enqueued, us", ("", "submit p50 / p99", "total p50 / p99"), rows)


def _pace(pace: Mapping[str, Any]) -> Table:
    rows = [
        (
            name,
            _pair(one, "in_stream_us"),
            _pair(one, "seen_to_decided_us"),
            number(one["cpu_percent"], 2),
            str(one["failed"]),
        )
        for name, one in pace.items()
    ]
    one = next(iter(pace.values()))
    title = f"{one['rate']:g} rounds a second of {one['requests']} requests, behind {one['gpu_ms']:.1f} ms of GPU work"
    return Table(
        title, ("daemon", "in the stream, us, p50 / p99", "seen to decided, us", "% of a core", "not OK"), rows
    )


def _steps(overlap: Mapping[str, Any]) -> Table:
    rows = [
        (f"{column['worker_ms']:g} ms", *(number(at(column, way, "step_ms", "p50"), 2) for way in WAYS))
        for column in overlap["step"]
    ]
    title = (
        f"Step p50, ms: {overlap['gpu_ms']:.1f} ms of GPU work, {overlap['cpu_ms']:.1f} ms of launching ({overlap['kernels']} kernels), "
        f"{overlap['requests']} requests"
    )
    return Table(title, ("worker", *(WORDS[way] for way in WAYS)), rows)


def _budget(overlap: Mapping[str, Any]) -> Table:
    rows = []
    for column in overlap["step"]:
        for way in WAYS:
            inside, network = at(column, way, "in_stream_ms", "p50"), at(column, way, "rounds", "seen_to_decided_ms")
            cells = [at(column, way, "step_ms", "p50"), at(column, way, "work_ms", "p50"), inside, network]
            cells.append(None if inside is None or network is None else inside - network)
            rows.append((f"{column['worker_ms']:g} ms", WORDS[way], *(number(cell, 3) for cell in cells)))
    head = ("worker", "", "step", "kernels", "round in the stream", "of that seen to decided", "of that the hand-off")
    return Table("Where a step goes, p50, ms; kernels and round by the GPU's own clock", head, rows)


def _busy(busy: Mapping[str, Any]) -> Table:
    steps = busy["step"]
    names = ("step", "kernels", "round in the stream", "of that seen to decided")
    keys = (("step_ms", "p50"), ("work_ms", "p50"), ("in_stream_ms", "p50"), ("rounds", "seen_to_decided_ms"))
    rows = [(name, *(number(at(steps, way, *key), 2) for way in WAYS)) for name, key in zip(names, keys, strict=True)]
    sync = at(steps, "sync", "step_ms", "p50")
    rows.append(("step x synchronous", *(number(ratio(at(steps, way, "step_ms", "p50"), sync), 4) for way in WAYS)))
    title = (
        f"With a busy interpreter: step p50, ms, worker {busy['worker_ms']:g} ms, {busy['python_ms']:.1f} ms of pure Python work in each "
        f"step after its launches, switch interval {busy['switch_ms']:g} ms"
    )
    return Table(title, ("", *(WORDS[way] for way in WAYS)), rows, BUSY_NOTE)


def _first(first: Mapping[str, Any], begin: str = "Time") -> Table:
    cells = [number(at(first, way, "first_token_ms", "p50"), 1) for way in WAYS]
    title = f"{begin} to first token, ms, mean of 3 prompts of {first['chunks']} chunks that arrive together, worker {first['worker_ms']:g} ms"
    against = [
        number(ratio(at(first, way, "first_token_ms", "p50"), at(first, "sync", "first_token_ms", "p50")), 4)
        for way in WAYS
    ]
    return Table(
        title, ("", *(WORDS[way] for way in WAYS)), [("median of the runs", *cells), ("x synchronous", *against)]
    )


def _neighbours(found: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for one in found:
        if "error" in one:
            rows.append((one["form"], one["max_connections"], f"not run: {one['error'][:60]}", "-", "-"))
        else:
            through = f"{one['through']} of {one['neighbours']}"
            rows.append(
                (one["form"], one["max_connections"], through, number(one["slowest_us"]), number(one["before_us"]))
            )
    head = ("form of waiting", "max connections", "neighbours that got through", "the slowest, us", "before, us")
    return Table("Beside a parked stream", head, rows)


def _connections(asked: Mapping[str, Any]) -> Table:
    rows = []
    for connections, said in asked.items():
        if "error" in said:
            rows.append((connections, f"not run: {said['error'][:60]}", "-"))
        else:
            found = said["self_test"] or f"passes: {said['steps'].get('other streams', '-')}"
            rows.append((connections, "refused" if said["refusal"] else "for the self-test", found))
    head = ("max connections", "the product says at once", "what its self-test finds without that")
    return Table("Few connections: asynchronous rounds", head, rows)


def _limits(parked: Mapping[str, Any], depth: Mapping[str, Any]) -> Table:
    bare, rows = parked.get("depth", {}), []
    if "taken_while_parked" in bare:
        rows.append(("launches taken behind a park before the call blocks", str(bare["taken_while_parked"])))
    if "run" in depth:
        rows += [
            (
                f"the product: {depth['launches']} launches behind a round of {depth['worker_ms']:g} ms took, ms",
                number(depth["launching_ms"]),
            ),
            ("the product: of these run, and the round's verdict", f"{depth['run']}, {depth['verdict']}"),
        ]
    for size in parked.get("register", {}).get("sizes", []):
        rows.append(
            (
                f"cuMemHostRegister / cuMemHostUnregister, {size['mib']} MiB, ms",
                f"{size['register_ms']:.2f} / {size['unregister_ms']:.2f}",
            )
        )
    return Table("Limits", ("", "measured"), rows)


def _recovery(recovery: Mapping[str, Any]) -> Table:
    def few(key: str) -> str:
        one = recovery[key]
        return f"{number(one['p50'])} ({number(one['min'])} to {number(one['max'])}, {one['n']} times)"

    calls = ", ".join(f"{count} {name}" for name, count in recovery["calls_in_adoption"].items()) or "none"
    rows = [
        (f"a region of {recovery['region_mib']} MiB mapped and registered", few("register_region_ms")),
        ("the next daemon is ready to the region adopted and a session", few("adoption_ms")),
        (
            "SIGKILL of the daemon to the next round with drafts, the next daemon started at once",
            few("kill_to_drafts_ms"),
        ),
        ("driver calls from the loss to the next session", calls),
        ("regions registered after the first", str(recovery["registrations_after_the_first"])),
    ]
    return Table("Loss and recovery, ms", ("", "median (range)"), rows)


def _goals(goals: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            goal["name"],
            f"{goal['at_most']:g}",
            "-" if goal["measured"] is None else f"{goal['measured']:g}",
            _word(goal),
        )
        for goal in goals
    ]
    return Table("Goals", ("", "at most", "measured", ""), rows)


def _word(goal: Mapping[str, Any]) -> str:
    return "not run" if goal["measured"] is None else "met" if goal["met"] else "missed"
