# SPDX-License-Identifier: Apache-2.0
"""The command line: what can be asked for, and what each option is good for."""

from __future__ import annotations

import argparse

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dsv41_rehearse.drills import arguments as drill_arguments
from dsv41_rehearse.ranges import within
from dsv41_rehearse.scenario import Scenario, ScenarioError
from dsv41_rehearse.text import Text, load
from hostflag.version import VERSION


_ABOUT: Final = """\
An engine stand-in: replays real text through a daemon and a worker, and checks every row and every draft on the way.
Bytes are the tokens. Each step verifies the drafts against the text, emits those that are right and one more, ships the
new rows and asks for the next drafts, with two steps in flight as in asynchronous scheduling. No GPU is needed.
"""
_EXAMPLES: Final = """\
examples:
  dsv41-rehearse demo                                  everything by itself, about 20 s, nothing left behind; the daemon is killed once
  dsv41-rehearse demo --text README.md --requests 4    your own text
  dsv41-rehearse demo --drafter mock --rounds 10000 --concurrency 16   drafts that can be checked bit by bit
  dsv41-rehearse run --socket /run/dsv41-proxyd/engine.sock            a daemon that is already there
  dsv41-rehearse kills --kills 200                     does it come back every time, and is nothing left behind?
  dsv41-rehearse drill all                             every fault of the contract, with small counts, and a table
  dsv41-rehearse compare DIR                           what was sent (--audit DIR) against what the worker got
  dsv41-rehearse bench overlap                         what a step takes in modes async, sync and none
  dsv41-rehearse bench curve                           what an encrypted worker link costs a round
  dsv41-rehearse bench --json bench.json               rounds against bare pyzmq on this machine
"""
_SCENARIO: Final = ("requests", "concurrency", "length", "prompt", "prefill_rows", "rounds", "arrival_steps", "preempt_every", "uniform",
                    "drafts", "row_bytes", "vocab", "window", "slots", "ring_bytes", "gpu_ms", "cpu_ms", "cpu_load",
                    "deadline_ms", "seed", "simulate_acceptance")  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Return the parser; ``command`` names the subcommand."""
    top = argparse.ArgumentParser(
        prog="dsv41-rehearse",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"dsv41-rehearse {VERSION}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _demo(_command(commands, "demo", "start daemon, worker and engine; replay a text; check everything; clean up"))
    _run(_command(commands, "run", "drive a daemon and a worker that are already there"))
    _kills(_command(commands, "kills", "kill the daemon, or the worker, many times in a row under load"))
    _bench(
        _command(
            commands, "bench", "measure rounds against bare pyzmq, idle CPU, wake-ups; or what async rounds save a step"
        )
    )
    drill_arguments.add(
        _command(
            commands,
            "drill",
            "inject faults into daemon, worker or engine and hold what comes of them against the bounds",
        )
    )
    _compare(_command(commands, "compare", "compare the audit files of engines and workers"))
    return top


def scenario(arguments: argparse.Namespace) -> Scenario:
    """
    Return what the options ask for.

    Raises TextError for a text that cannot be replayed, ScenarioError for numbers out of bounds.
    """
    text: Text = load(arguments.text)
    given = {name: getattr(arguments, name) for name in _SCENARIO if getattr(arguments, name) is not None}
    if arguments.simulate_acceptance and getattr(arguments, "drafter", "mock") != "mock":
        raise ScenarioError("--simulate-acceptance is for drafts that guess nothing: give --drafter mock with it")
    if arguments.mode == "none" and arguments.rounds is not None:
        raise ScenarioError("--rounds counts drafting rounds, and --mode none makes none: give --requests instead")
    return Scenario(text=text, **given)


def soak_scenario(arguments: argparse.Namespace) -> Scenario:
    """Return what is replayed while things are killed: without end, at an engine's pace, rounds with all kinds of row counts."""
    return Scenario(
        text=load(), rounds=1, concurrency=arguments.requests, length=4_000, arrival_steps=20, gpu_ms=3.0,
        simulate_acceptance=True, seed=arguments.seed,
    )  # fmt: skip


def _command(commands: Any, name: str, about: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    return made


def _demo(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--drafter", default="prompt-lookup", metavar="NAME",
        help="the worker's: prompt-lookup (default), mock, or module:Class",
    )  # fmt: skip
    command.add_argument(
        "--worker-ms",
        type=within(float, 0, 60_000),
        default=0.0,
        metavar="MS",
        help="simulated draft time a round (0)",
    )
    command.add_argument(
        "--no-kill", dest="kill", action="store_false",
        help="leave the daemon alone: it is killed in the middle of the run and started again, to see the drafts come back",
    )  # fmt: skip
    command.add_argument("--keep", action="store_true", help="leave daemon, worker and their directory for inspection")
    _replay(command)


def _run(command: argparse.ArgumentParser) -> None:
    command.add_argument("--socket", type=Path, required=True, metavar="PATH", help="the daemon's engine socket")
    command.add_argument(
        "--expect-mock", action="store_true", help="the worker drafts with mock: check every draft on this side too"
    )
    command.add_argument(
        "--respawns", type=within(int, 0, 1_000_000), metavar="N",
        help="how many sessions may be lost an hour and are followed by another one (3)",
    )  # fmt: skip
    _replay(command)


def _replay(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--text", type=Path, metavar="FILE", help="UTF-8 text to replay (bundled: this project's C headers)")
    add(
        "--mode", choices=("async", "sync", "none"), default="async",
        help="the stream waits for drafts (async, the default), the engine thread does (sync), or there are none (none)",
    )  # fmt: skip
    add("--audit", type=Path, metavar="DIR", help="write a line a round to DIR/engine-SESSION.jsonl, for compare")
    add("--json", type=Path, metavar="FILE", help="write everything that was counted and measured")
    add(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw drafts accepted over time (pip install 'dsv41-proxyd[plot]')",
    )
    add(
        "--start-round",
        type=within(int, 0, (1 << 32) - 1),
        metavar="N",
        help="begin the round counter there, e.g. 4294966296 to pass its wrap",
    )
    add("--quiet", action="store_true", help="no progress and no summary; the exit status tells")
    work = command.add_argument_group("work")
    _number(work, "--requests", int, "N", "how many requests")
    _number(work, "--concurrency", int, "N", "requests at once, 1 to 16 and more")
    _number(work, "--length", int, "TOKENS", "of the longest request, prompt included")
    _number(work, "--prompt", int, "TOKENS", "of a usual request; some have longer, some shorter ones")
    _number(work, "--prefill-rows", int, "N", "prompt tokens a request and step (chunked prefill)")
    work.add_argument("--uniform", action="store_true", help="all requests of this length and prompt (they vary)")
    _number(work, "--rounds", int, "N", "keep requests coming until so many drafting rounds were made")
    _number(work, "--arrival-steps", int, "N", "steps between two arrivals; 0: all at once")
    _number(work, "--preempt-every", int, "STEPS", "take the youngest request out so often; 0: never")
    work.add_argument(
        "--simulate-acceptance", action="store_true",
        help="count a pseudo-random number of drafts as accepted: for the mock's, which guess nothing",
    )  # fmt: skip
    _number(work, "--seed", int, "N", "of the row bytes")
    sizes = command.add_argument_group("sizes")
    _number(sizes, "--k", int, "N", "drafts a request and round", into="drafts")
    _number(sizes, "--rows-bytes", int, "BYTES", "of one row", into="row_bytes")
    _number(sizes, "--vocab", int, "N", "draft ids are below it", into="vocab")
    _number(sizes, "--window", int, "ROWS", "newest prompt rows that are shipped")
    _number(sizes, "--slots", int, "N", "rounds in flight that the region can hold")
    _number(sizes, "--ring-bytes", int, "BYTES", "of the region's row ring")
    times = command.add_argument_group("times")
    _number(times, "--gpu-ms", float, "MS", "simulated GPU work a step")
    _number(times, "--cpu-ms", float, "MS", "CPU work to launch a step")
    times.add_argument("--cpu-load", choices=("spin", "sleep"), help="how that CPU work is done (spin)")
    _number(times, "--deadline-ms", float, "MS", "a round is released within it, whatever happens")


def _kills(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--kills", type=within(int, 1, 1_000_000), default=20, metavar="N", help="how many (20)")
    add("--requests", type=within(int, 1, 256), default=3, metavar="R", help="requests at once meanwhile (3)")
    add(
        "--signal", choices=("kill", "stop"), default="kill",
        help="SIGKILL (default), or SIGSTOP and, once there are drafts again, SIGCONT",
    )  # fmt: skip
    add(
        "--what", choices=("daemon", "worker", "switch"), default="daemon",
        help="whom: the daemon (default), the worker, or nobody: the daemon is led to another worker",
    )  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write everything that was counted and measured")
    add("--quiet", action="store_true", help="no progress and no summary; the exit status tells")
    add(
        "--seed",
        type=within(int, 0, (1 << 63) - 1),
        default=1,
        metavar="N",
        help="of the row bytes and the pauses (1)",
    )


def _bench(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "what", nargs="?", choices=("rounds", "overlap", "curve"), default="rounds",
        help="rounds against bare pyzmq (default), steps in modes async, sync and none, or what an encrypted worker link costs",
    )  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write the numbers")
    add("--blocks", type=within(int, 1, 1000), default=5, metavar="N", help="interleaved blocks (5)")
    add(
        "--block-s",
        type=within(float, 0.1, 600),
        default=1.5,
        metavar="S",
        help="length of one measurement within a block (1.5)",
    )
    add(
        "--idle-s",
        type=within(float, 0.1, 600),
        default=20.0,
        metavar="S",
        help="how long to watch the daemon at rest (20)",
    )
    add(
        "--pace-s",
        type=within(float, 0.1, 600),
        default=12.0,
        metavar="S",
        help="how long to run 25 rounds a second (12)",
    )
    add("--seed", type=within(int, 0, (1 << 63) - 1), default=1, metavar="N", help="of row bytes and gather times (1)")


def _compare(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory", type=Path, metavar="DIR", help="holds engine-*.jsonl and worker-*.jsonl")
    command.add_argument(
        "--k", type=within(int, 1, 64), default=5, metavar="N", help="drafts a request, for counting (5)"
    )


def _number(group: Any, name: str, kind: type, metavar: str, about: str, *, into: str | None = None) -> None:
    into = into or name[2:].replace("-", "_")
    default = getattr(Scenario, into)
    shown = "" if default is None else f" ({default:g})" if isinstance(default, float) else f" ({default})"
    group.add_argument(name, type=kind, dest=into, metavar=metavar, help=about + shown)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments; argparse leaves with status 2 where they make no sense."""
    return parser().parse_args(argv)
