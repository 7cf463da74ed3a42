# SPDX-License-Identifier: Apache-2.0
"""What ``dsv41-rehearse`` does: 0 where everything is as it should be, 1 where it is not, 2 where it was not asked for properly, 3: nothing shown."""

from __future__ import annotations

import argparse
import errno
import logging
import os

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

import engine_shim

from dsv41_rehearse import bench, bench_curve, bench_overlap, demo, interrupts, kills, options, picture, summary
from dsv41_rehearse.audit_compare import AuditError, Comparison, compare
from dsv41_rehearse.drills import registry, runner
from dsv41_rehearse.drive import Drive, drive
from dsv41_rehearse.engine import StreamStuckError
from dsv41_rehearse.outcome import report as make_report
from dsv41_rehearse.progress import Shown, Silent, said
from dsv41_rehearse.report import ReportError, RunReport, check_writable, origin, write
from dsv41_rehearse.scenario import ScenarioError
from dsv41_rehearse.stack import StackError
from dsv41_rehearse.text import TextError
from hostflag import starting


GOOD: Final = 0
WRONG: Final = 1
USAGE: Final = 2
NOTHING_SHOWN: Final = 3  # a drill whose machine stood still, twice
INTERRUPTED: Final = 130


class Output(Console):
    """Standard output. Where nobody reads it any more that is raised, so that what was started is ended in order."""

    def on_broken_pipe(self) -> None:
        """Say nothing more."""
        self.quiet = True
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status."""
    arguments = options.parse(argv)
    console = Output(quiet=getattr(arguments, "quiet", False))
    errors = Console(stderr=True)
    with interrupts.heeded():
        try:
            return _do(arguments, console, errors)
        except KeyboardInterrupt:
            errors.print("dsv41-rehearse: interrupted; everything it started is ended", highlight=False, soft_wrap=True)
            return INTERRUPTED


def _do(arguments: argparse.Namespace, console: Console, errors: Console) -> int:
    try:
        # A run with one loss says when what happened; the soak's many are a table.
        with said(console, logging.WARNING if arguments.command in {"demo", "run"} else logging.CRITICAL):
            return _COMMANDS[arguments.command](arguments, console)
    except BrokenPipeError:
        return starting.unread()  # as head does
    except (TextError, ScenarioError, ReportError, AuditError) as error:
        errors.print(f"dsv41-rehearse: {error}", highlight=False, markup=False, soft_wrap=True)
        return USAGE
    except (StackError, StreamStuckError, engine_shim.ShimError) as error:
        errors.print(f"dsv41-rehearse: {error}", highlight=False, markup=False, soft_wrap=True)
        return WRONG
    except OSError as error:
        # A disk that fills up under the audit.
        where = f" ({error.filename})" if error.filename else ""
        errors.print(
            f"dsv41-rehearse: {error.strerror}{where}: the run was given up",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return WRONG


def _demo(arguments: argparse.Namespace, console: Console) -> int:
    scenario = options.scenario(arguments)
    _check_outputs(arguments)
    made = demo.run(
        demo.Demo(
            scenario=scenario,
            drafter=arguments.drafter,
            worker_ms=arguments.worker_ms,
            mode=arguments.mode,
            kill=arguments.kill,
            audit=arguments.audit,
            keep=arguments.keep,
            start_round=arguments.start_round,
        ),
        console,
    )
    return _finish(arguments, console, made)


def _run(arguments: argparse.Namespace, console: Console) -> int:
    scenario = options.scenario(arguments)
    _check_outputs(arguments)
    how = Drive(
        scenario=scenario,
        socket=arguments.socket,
        mode=arguments.mode,
        respawns=arguments.respawns,
        audit=arguments.audit,
        check_mock=arguments.expect_mock,
        start_round=arguments.start_round,
    )
    with Silent() if arguments.quiet else Shown(console) as watch:
        driven = drive(how, watch)
    compared: Comparison | None = None
    if arguments.audit is not None and driven.books.sessions and list(arguments.audit.glob("worker-*.jsonl")):
        compared = demo.settled(arguments.audit, scenario.drafts, driven.books.sessions)
    return _finish(arguments, console, make_report(how, driven, compared, [], expect_ok=False, expect_drafts=True))


def _finish(arguments: argparse.Namespace, console: Console, made: RunReport) -> int:
    summary.show(console, made)
    if arguments.json is not None:
        write(arguments.json, made)
    if arguments.plot is not None:
        picture.draw(arguments.plot, made)
    return GOOD if made.good else WRONG


def _kills(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.json is not None:
        check_writable(arguments.json)
    made = kills.run(
        kills.Kills(
            scenario=options.soak_scenario(arguments),
            kills=arguments.kills,
            what=arguments.what,
            stop=arguments.signal == "stop",
        ),
        console,
    )
    kills.show(console, made)
    if arguments.json is not None:
        write(arguments.json, made.plain())
    return WRONG if made.faults else GOOD


def _bench(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.json is not None:
        check_writable(arguments.json)
    if arguments.what == "overlap":
        return bench_overlap.main(arguments, console)
    if arguments.what == "curve":
        return bench_curve.main(arguments, console)
    return bench.main(arguments, console)


def _drill(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.json is not None:
        check_writable(arguments.json)
    what = runner.Run(
        drills=registry.chosen(arguments.names), scale="full" if arguments.full else "quick", repeat=arguments.repeat,
        seed=arguments.seed, json=arguments.json, command=origin(arguments.seed).command,
    )  # fmt: skip
    verdicts = {row.verdict for row in runner.run(what, console)}
    # STALLED is what is left where the second try stood still too: nothing is wrong, and nothing is shown.
    return WRONG if "WRONG" in verdicts else NOTHING_SHOWN if "STALLED" in verdicts else GOOD


def _compare(arguments: argparse.Namespace, console: Console) -> int:
    found = compare(arguments.directory, arguments.k)
    summary.show_comparison(console, found)
    return GOOD if found.identical else WRONG


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Fail before a run is spent, not after it."""
    if arguments.json is not None:
        check_writable(arguments.json)
    if arguments.plot is not None:
        picture.check(arguments.plot)
    if arguments.audit is not None:
        _make_directory(arguments.audit)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"cannot write the audit in {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ReportError(f"cannot write the audit in {path}: permission denied")


_COMMANDS: Final = {"demo": _demo, "run": _run, "kills": _kills, "bench": _bench, "drill": _drill, "compare": _compare}
