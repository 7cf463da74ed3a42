# SPDX-License-Identifier: Apache-2.0
"""``dsv41-proxyctl keygen``: the key pairs of a worker link."""

from __future__ import annotations

import argparse

from pathlib import Path
from typing import Final

from hostflag.keys import KeyFault, write_pair
from proxyd.operator.ctlclient import Failed


NAMES: Final = ("daemon", "worker")
HELP: Final = """
What goes where (a .key never leaves its machine but by a way that nobody can listen to, a .pub may be anywhere):

  the daemon's machine:  {directory}/daemon.key  {directory}/worker.pub
    [worker]
    curve_secret_key_file = "{directory}/daemon.key"
    curve_server_key_file = "{directory}/worker.pub"

  the worker's machine:  {directory}/worker.key  {directory}/daemon.pub
    dsv41-refworker --curve-secret-key-file {directory}/worker.key --curve-allowed-keys-file {directory}/daemon.pub

Each .key must belong to the user that its program runs as (chown), or to root.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "keygen",
        help="make the keys of an encrypted worker link (CURVE); asks no daemon",
        description="Writes daemon.key, daemon.pub, worker.key and worker.pub into DIR, and says what goes where. Overwrites nothing.",
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="made where it is not there")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> tuple[str, int]:
    try:
        return keygen(options.directory).rstrip("\n"), 0
    except KeyFault as fault:
        raise Failed(str(fault)) from fault
    except OSError as fault:
        raise Failed(f"cannot make {options.directory}: {fault.strerror}") from fault


def keygen(directory: Path) -> str:
    """
    Make a pair for the daemon and one for its workers in ``directory``, which is made where it is not there (mode 0700).

    Returns what to do with them. Raises KeyFault; nothing is ever overwritten, and a pair that was begun is taken back.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    made: list[Path] = []
    try:
        for name in NAMES:
            made += write_pair(directory, name)
    except BaseException:
        for path in made:
            path.unlink()
        raise
    return "".join(f"{path}\n" for path in made) + HELP.format(directory=directory.absolute())
