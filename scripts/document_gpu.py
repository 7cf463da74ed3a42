# SPDX-License-Identifier: Apache-2.0
"""
Write docs/PERFORMANCE.md and docs/DEADLOCKS.md from what a run on a GPU left in docs/measured/: ``document_gpu.py [--check]``.

``--check`` writes nothing and fails where a document is not what the measurements make it. ``--add bench.json`` puts the goals of a run,
good or bad, beside those of the runs before.
"""

from __future__ import annotations

import argparse
import json
import sys

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final


ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.gpu.deadlocks.minimal import CALLS, HELPERS  # noqa: E402
from bench.gpu.goals import at, floor_of  # noqa: E402
from bench.gpu.show import Table, tables  # noqa: E402


MEASURED: Final = ROOT / "docs" / "measured"
RUNS: Final = "goals.json"  # of every run by its date
NOT_YET: Final = "\n**Not run yet**: `scripts/gpu_run` on a machine with a GPU, then this script.\n"
HELPER_WORDS: Final = {
    "cuda": "a thread that calls CUDA first",
    "self": "the engine's thread, behind the call",
    "free": "a thread that does not call CUDA",
    "process": "a process that does not call CUDA",
}
CALL_WORDS: Final = {
    "first-launch": "first launch of a lazily loaded kernel, driver API",
    "runtime-launch": "the same, CUDA runtime",
    "module-load": "`cuModuleLoadData`",
    "memory-free": "`cuMemFree`",
    "sync-copy": "`cuMemcpyHtoD` of 4 KiB",
    "unregister": "`cuMemHostUnregister`",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--add", type=Path, metavar="FILE", help="a run's bench.json whose goals are to be shown, too")
    arguments = parser.parse_args(argv)
    if arguments.add:
        _add_run(json.loads(arguments.add.read_text(encoding="utf-8")))
    stale = [path for path, text in documents().items() if not _kept(path, text, check=arguments.check)]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not what docs/measured/ makes it: run scripts/document_gpu.py")
    return 1 if stale else 0


def documents() -> dict[Path, str]:
    """Return the documents as they should be."""
    return {ROOT / "docs" / "PERFORMANCE.md": performance(), ROOT / "docs" / "DEADLOCKS.md": deadlocks()}


def performance() -> str:
    """Return docs/PERFORMANCE.md."""
    report = _measured("bench.json")
    parts = [(ROOT / "docs" / "measured" / "performance.head.md").read_text(encoding="utf-8")]
    if report is None:
        return parts[0] + NOT_YET
    parts.append(_origin(report))
    if (MEASURED / "bench.png").exists():
        parts.append("\n![the same as a picture](measured/bench.png)\n")
    parts += [_markdown(table) for table in tables(report)]
    if runs := _measured(RUNS):
        parts.append(_markdown(_goals_by_run(runs)))
    for name in report.get("broken", {}):
        parts.append(f"\n**{name} broke in this run and is not in the tables.**\n")
    return "".join(parts)


def _add_run(report: Mapping[str, Any]) -> None:
    runs = dict(_measured(RUNS) or {})
    runs[report["date"]] = {
        "bare_submit_us": at(report, "handoff", floor_of(report["handoff"], "round 3"), "submit_us", "p50"),
        "goals": {goal["name"]: [goal["at_most"], goal["measured"]] for goal in report["goals"]},
    }
    text = json.dumps({date: runs[date] for date in sorted(runs)}, indent=1) + "\n"
    (MEASURED / RUNS).write_text(text, encoding="utf-8")


def _goals_by_run(runs: Mapping[str, Any]) -> Table:
    bounds = {name: bound for run in runs.values() for name, (bound, _) in run["goals"].items()}
    rows = [
        ("how fast the processor was: bare C's submit of 3, p50, us", "", *(_figure(run["bare_submit_us"]) for run in runs.values()))
    ]  # fmt: skip
    for name, bound in bounds.items():
        measured = [run["goals"].get(name, (bound, None))[1] for run in runs.values()]
        rows.append((name, f"{bound:g}", *(_figure(value, bound) for value in measured)))
    note = "Each run had its own machine, lent for minutes, whose other guests are unknown. **Bold**: missed."
    return Table("The goals, run by run", ("", "at most", *runs), rows, note)


def _figure(value: float | None, bound: float | None = None) -> str:
    if value is None:
        return "-"
    return f"**{value:.4g}**" if bound is not None and value > bound else f"{value:.4g}"


def deadlocks() -> str:
    """Return docs/DEADLOCKS.md."""
    report = _measured("deadlocks.json")
    head = (MEASURED / "deadlocks.head.md").read_text(encoding="utf-8")
    if report is None:
        return head + NOT_YET
    parts = [head, _origin(report), _markdown(_hangs(report["minimal"])), _markdown(_eager(report["minimal"]))]
    if product := report.get("product"):
        parts.append(_markdown(_through(product)))
    return "".join(parts)


def _hangs(found: Sequence[Mapping[str, Any]]) -> Table:
    cells = {(one["call"], one["helper"]): _outcome(one) for one in found if one.get("module_loading") == "default"}
    rows = [(CALL_WORDS[call], *(cells.get((call, helper), "-") for helper in HELPERS)) for call in CALLS]
    head = ("while parked, the engine's thread does", *(HELPER_WORDS[helper] for helper in HELPERS))
    return Table("Who releases the stream: with lazy loading, the default", head, rows)


def _eager(found: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (CALL_WORDS[one["call"]], HELPER_WORDS[one["helper"]], _outcome(one))
        for one in found
        if one.get("module_loading") == "EAGER"
    ]
    return Table("With CUDA_MODULE_LOADING=EAGER", ("while parked", "released by", ""), rows)


def _outcome(one: Mapping[str, Any]) -> str:
    if one["outcome"] == "hung":
        return "**hangs**"
    if one["outcome"] == "passed":
        return f"passes, the call took {one['call_ms']:.1f} ms"
    return "not run"


def _through(product: Mapping[str, Any]) -> Table:
    words = {
        "fresh_module": "a fresh module load in each",
        "first_torch_launch": "the first launch of a kernel of torch in each",
    }
    rows = [
        (
            text,
            f"{one['ok']} of {one['rounds']}",
            str(one["parked_at_call"]),
            f"{sorted(one['call_ms'])[len(one['call_ms']) // 2]:.1f}",
        )
        for name, text in words.items()
        if (one := product.get(name)) and one["call_ms"]
    ]
    note = (
        f"The worker takes {product['worker_ms']:g} ms a round. The daemon "
        f"{'MAPS' if product['daemon_maps_libcuda'] else 'maps no'} libcuda. Sessions lost: {sum(product['losses'].values())}."
    )
    head = ("rounds through the product, with", "ended OK", "still parked at the call", "the call took, ms, median")
    return Table("The product", head, rows, note)


def _origin(report: Mapping[str, Any]) -> str:
    environment = " ".join(f"{name}={value}" for name, value in report["environment"].items())
    return (
        f"\n{report['machine']}, driver {report['driver']}, CUDA {report['cuda']}, Python {report['python']}, {report['date']}, "
        f"version {report['version']}. Made by\n\n    {environment}{' ' if environment else ''}{report['command']}\n"
    )


def _markdown(table: Table) -> str:
    lines = [
        f"\n## {table.title}\n",
        f"| {' | '.join(table.head)} |",
        f"|{'|'.join(['---', *['---:'] * (len(table.head) - 1)])}|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join(lines) + (f"\n\n{table.note}\n" if table.note else "\n")


def _measured(name: str) -> dict[str, Any] | None:
    path = MEASURED / name
    if not path.exists():
        return None
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def _kept(path: Path, text: str, *, check: bool) -> bool:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return True
    if not check:
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)} written")
    return not check


if __name__ == "__main__":
    sys.exit(main())
