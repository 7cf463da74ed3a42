# SPDX-License-Identifier: Apache-2.0
"""What a run leaves as JSON. The names of the keys are an interface: scripts read them."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from dsv41_rehearse.samples import Few, Spread
from hostflag.version import VERSION


class ReportError(Exception):
    """The report cannot be written; the message says why."""


@dataclass(frozen=True)
class DaemonReport:
    """The daemon as /proc saw it; None where it could not be looked at. CPU: percent of one core."""

    rss_private_mib: float | None
    region_mib: float
    idle_cpu_percent: float | None
    cpu_percent: float | None


@dataclass(frozen=True)
class LossReport:
    """
    A loss on the run's own clock, seconds; None: it was not seen, or not ours to see. ``hurt``: the signal was sent.

    ``ready``: the next daemon was. ``back``: the first drafted round after it.
    """

    reason: str | None
    hurt: float | None
    lost: float | None
    ready: float | None
    back: float | None


@dataclass(frozen=True)
class Origin:
    """Where numbers come from: without it they say nothing."""

    commit: str
    machine: str
    command: str
    seed: int


@dataclass(frozen=True)
class RunReport:
    """
    A run of demo or run.

    ``accepted_per_step``: drafts accepted a verified request step, the bonus token not counted; None where
    ``acceptance_simulated``. ``accepted_over_time``: (seconds, the same) of each bucket. ``losses`` ...
    ``loss_times``: see Aftermath. ``rounds``: drafting
    rounds by verdict; ``skipped``: steps that wanted drafts and made no round, by reason. ``wrong_drafts`` were used
    under OK and are not what the worker answered; ``wrong_rows`` are not at the worker as they were sent. ``before`` and
    ``after``: what engine and daemon held before the session and after it; ``left_over``: what should be gone and is not.
    """

    commit: str
    machine: str
    command: str
    seed: int
    daemon_pids: list[int]
    requests_submitted: int
    requests_completed: int
    steps: int
    target_only_steps: int
    tokens: int
    accepted_per_step: float | None
    identical: bool
    drafts_checked: int
    wrong_drafts: int
    rows_checked: int
    wrong_rows: int
    rounds: Mapping[str, int]
    skipped: Mapping[str, int]
    submit_us: Spread
    round_us: Spread
    step_ms: Spread
    daemon: DaemonReport
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    context_rounds: int
    illegal_ids: int
    events: Mapping[str, int]
    mode: str
    acceptance_simulated: bool
    accepted_over_time: list[tuple[float, float]]
    losses: Mapping[str, int]
    loss_seen_ms: Few
    released_ms: Few
    recovery_from: str
    recovery_ms: Few
    recovery_from_kill_ms: Few
    registrations: int
    adoptions: int
    loss_times: list[LossReport]
    lost: str | None
    seconds: float
    left_over: list[str]
    faults: list[str]
    engine: Mapping[str, Any]
    scenario: Mapping[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether the run is what it should be."""
        return not self.faults


def origin(seed: int) -> Origin:
    """Return commit, machine and command of this process."""
    return Origin(commit(), machine(), shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]), seed)


def commit() -> str:
    """Return the commit of the source tree (with "+" where it was changed), or the version outside of one."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return f"version {VERSION}"
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return f"version {VERSION}"
    return f"{head}+" if changed else head


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def machine() -> str:
    """Return processor, cores, kernel and Python in a line."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )


def check_writable(path: Path) -> None:
    """Raise ReportError where a report could not be written, before a run is spent on it."""
    if path.is_dir():
        raise ReportError(f"cannot write the report {path}: it is a directory")
    if not path.parent.is_dir():
        raise ReportError(f"cannot write the report {path}: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ReportError(f"cannot write the report {path}: permission denied")


def write(path: Path, report: object) -> None:
    """
    Write a report, a file whole or not at all. Raises ReportError where that does not work.

    What is no file of its own (/dev/null, /dev/stdout, a pipe, a link) is written to and never replaced.
    """
    values = asdict(report) if is_dataclass(report) and not isinstance(report, type) else report
    text = json.dumps(values, indent=2, default=str) + "\n"
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text)
            return
        staged.write_text(text)
        staged.replace(path)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise ReportError(f"cannot write the report {path}: {error.strerror}") from error
