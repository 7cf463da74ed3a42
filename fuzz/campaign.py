# SPDX-License-Identifier: Apache-2.0
"""One run of one fuzzer, and what came of it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fuzz.targets import BUILD, IN_C, ROOT, Target, inputs


TAIL_LINES: Final = 40
SLACK_S: Final = 120  # a run that does not end by then hangs
# One input: libFuzzer ends it. The machine may be busy.
INPUT_LIMITS: Final = ("-timeout=20", "-rss_limit_mb=1024", "-malloc_limit_mb=512")
_LAST: Final = re.compile(r"^#(\d+)\s+DONE\s+cov: (\d+) ft: (\d+) corp: (\d+)", re.MULTILINE)
_COUNTERS: Final = re.compile(r"\((\d+) inline 8-bit counters\)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """``inputs``: those that failed. ``edges`` of ``all_edges`` were covered; 0 where the fuzzer does not know how many there are."""

    target: Target
    clean: bool
    command: str
    executions: int = 0
    seconds: int = 1
    edges: int = 0
    all_edges: int = 0
    kept: int = 0
    inputs: list[Path] = field(default_factory=list)
    tail: str = ""

    def line(self) -> str:
        """Return it in one line."""
        share = f" of {self.all_edges}" if self.all_edges else ""
        what = "clean" if self.clean else "FOUND SOMETHING"
        rate = self.executions // max(1, self.seconds)
        return f"{self.target.name:9} {what}: {self.executions} inputs, {rate}/s, {self.edges}{share} edges, corpus {self.kept}"


def command_of(target: Target) -> list[str]:
    """Return how the target is run, relative to the project's folder: libFuzzer's flags or inputs follow."""
    if target in IN_C:
        return [str((BUILD / target.name).relative_to(ROOT))]
    return [sys.executable, "-m", "fuzz.drive", target.name]


class Campaign:
    """Runs fuzzers for ``seconds`` each. ``keep``: a folder of corpora that grow, None for none; ``found``: where failing inputs go."""

    def __init__(self, seconds: int, keep: Path | None, found: Path) -> None:
        self._seconds = seconds
        self._keep = keep
        self._found = found.resolve()

    def run(self, target: Target) -> Outcome:
        """Start from the committed inputs, which stay as they are."""
        with tempfile.TemporaryDirectory(prefix="dsv41-fuzz-") as scratch:
            grown = Path(scratch) if self._keep is None else self._keep.resolve() / target.name
            grown.mkdir(parents=True, exist_ok=True)
            return self._run(target, command_of(target), grown)

    def _run(self, target: Target, command: list[str], grown: Path) -> Outcome:
        failing = self._found / target.name
        failing.mkdir(parents=True, exist_ok=True)
        before = set(failing.iterdir())
        seeds = sorted({str(path.parent.relative_to(ROOT)) for path in inputs(target)})
        full = [
            *command, f"-max_total_time={self._seconds}", f"-max_len={target.most_bytes}", "-len_control=20", *INPUT_LIMITS,
            f"-artifact_prefix={failing}/", str(grown), *seeds,
        ]  # fmt: skip
        status, said = _end_of(full, self._seconds + SLACK_S)
        outcome = _outcome(target, shlex.join(full), status, said)
        return replace(outcome, seconds=self._seconds, **_failing(outcome, sorted(set(failing.iterdir()) - before)))


def _end_of(command: list[str], limit_s: int) -> tuple[int, str]:
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:print_legend=0",
        "PYTHONPATH": str(ROOT),
    }
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        _, said = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        _, said = process.communicate()
        return 1, f"{said}\nit did not end within {limit_s} s"
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process.returncode, said


def _failing(outcome: Outcome, inputs: list[Path]) -> dict[str, Any]:
    return {"inputs": inputs, "clean": outcome.clean and not inputs}


def _outcome(target: Target, command: str, status: int, said: str) -> Outcome:
    last, counters = _LAST.search(said), _COUNTERS.search(said)
    executions, edges, _, kept = map(int, last.groups()) if last else (0, 0, 0, 0)
    return Outcome(
        target,
        clean=status == 0 and last is not None,
        command=command,
        executions=executions,
        edges=edges,
        all_edges=int(counters[1]) if counters else 0,
        kept=kept,
        tail="\n".join(said.splitlines()[-TAIL_LINES:]),
    )
