# SPDX-License-Identifier: Apache-2.0
"""``dsv41-proxyctl qualify``: tries the hand-off on a GPU, in an engine's process of its own: nothing of proxyd loads CUDA."""

from __future__ import annotations

import argparse
import subprocess
import sys

from pathlib import Path
from typing import Final

from hostflag.qualifying import rounds_of
from proxyd.operator.ctlclient import Failed, Unreachable


PROGRAM: Final = "engine_shim.qualify"
REFUSED: Final = 1  # its exit status: it found that rounds must not be parked
ENDS_S: Final = 120.0  # it bounds itself; this is for a driver that lets nothing end


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "qualify",
        help="whether rounds may be parked on this GPU with this image, and what they take",
        description="Echo rounds through the daemon, without a worker: attributes of the device, registration of the region, the order of "
        "rows, flags and replies, a module load while a round is parked; then their latencies. Run it where engines run: in their image, "
        "on their GPU. Exit status 0 where rounds may be parked, 1 where they must be synchronous, 3 without a driver or a daemon to the end.",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="save the report there too")
    parser.add_argument("--device", metavar="N", type=int, default=0, help="which GPU (default: %(default)s)")
    # Looked at here as well as there: what it says of wrong arguments is about a program that nobody called.
    parser.add_argument(
        "--rounds", metavar="N", type=rounds_of, default=1000, help="of each kind (default: %(default)s)"
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        default=sys.executable,
        help="the engine's Python, where that is another one than this",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> tuple[str, int]:
    flags = [f"--socket={options.socket}", f"--device={options.device}", f"--rounds={options.rounds}"]
    if options.json is not None:
        flags.append(f"--json={options.json}")
    try:
        ended = subprocess.run(
            [options.python, "-m", PROGRAM, *flags], capture_output=True, text=True, timeout=ENDS_S, check=False
        )
    except OSError as fault:
        raise Failed(f"{options.python} cannot be run: {fault.strerror}") from fault
    except subprocess.TimeoutExpired as late:
        raise Failed(f"it did not end within {ENDS_S:g} s: the CUDA driver of this machine hangs, see dmesg") from late
    said = ended.stderr.strip()
    if ended.stdout and ended.returncode in {0, REFUSED}:
        if said:
            sys.stderr.write(said + "\n")
        return ended.stdout.rstrip(), ended.returncode
    raise Unreachable(said or f"it ended with status {ended.returncode} and said nothing")
