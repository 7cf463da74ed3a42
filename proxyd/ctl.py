# SPDX-License-Identifier: Apache-2.0
"""``dsv41-proxyctl``: looks at a running daemon, and leads it to other workers."""

from __future__ import annotations

import argparse
import socket
import sys

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from hostflag.channel import BadMessage, Channel, ChannelClosed, ChannelTimeout, operator_end
from hostflag.defaults import ENGINE_SOCKET
from hostflag.messages import (
    PROTOCOL_VERSION,
    Done,
    Message,
    OperatorHello,
    Refused,
    Status,
    StatusRequest,
    SwitchWorker,
    ToOperator,
)
from hostflag.version import VERSION
from proxyd.endpoints import checked_endpoints


EXIT_FAILED: Final = 1
ANSWER_S: Final = 10.0


class Failed(Exception):
    """What was asked for did not happen; the message says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Do one command. Returns the exit status: 1 where it failed, with the reason on stderr."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        if options.command == "switch-worker":
            text = _switch(options.socket, options.endpoints)
        else:
            text = _status(options.socket, as_json=options.json)
    except Failed as fault:
        sys.stderr.write(f"dsv41-proxyctl: {fault}\n")
        return EXIT_FAILED
    sys.stdout.write(text + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dsv41-proxyctl", description="Speaks to a running dsv41-proxyd.", allow_abbrev=False
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        default=Path(ENGINE_SOCKET),
        help="where the daemon listens (default: %(default)s)",
    )
    parser.add_argument("--version", action="version", version=f"dsv41-proxyctl {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    switch = commands.add_parser(
        "switch-worker", help="use these worker endpoints from now on, the first that answers; sessions go on"
    )
    switch.add_argument("endpoints", metavar="ENDPOINT", nargs="+", help="tcp:// or ipc://, the most preferred first")
    status = commands.add_parser("status", help="the daemon, its worker, its sessions")
    status.add_argument("--json", action="store_true", help="for programs: the STATUS message")
    return parser


def _switch(path: Path, endpoints: Sequence[str]) -> str:
    try:
        request = SwitchWorker(endpoints=checked_endpoints(endpoints))
    except ValueError as fault:
        raise Failed(str(fault)) from fault
    answer = _ask(path, request)
    if not isinstance(answer, Done):
        raise Failed(f"the daemon answered {type(answer).__name__}")
    return answer.text


def _status(path: Path, *, as_json: bool) -> str:
    answer = _ask(path, StatusRequest())
    if not isinstance(answer, Status):
        raise Failed(f"the daemon answered {type(answer).__name__}")
    return msgspec.json.encode(answer).decode() if as_json else _readable(answer)


def _readable(status: Status) -> str:
    doing = "draining" if status.draining else "serving"
    lines = [f"dsv41-proxyd {status.version}, pid {status.pid}, {doing}, up {status.seconds:.0f} s"]
    lines += [f"worker   {each}{'  in use' if each == status.endpoint else ''}" for each in status.endpoints]
    for each in status.sessions:
        worker = f"worker {each.worker}" if each.worker else "no worker yet"
        lines.append(
            f"session  {each.session}  {each.engine} rank {each.rank} pid {each.pid}: link {each.link} at {each.endpoint}, "
            f"{worker}, breaker {each.breaker}, round {each.round}, {each.seconds:.0f} s"
        )
    return "\n".join(lines if status.sessions else [*lines, "no sessions"])


def _ask(path: Path, request: Message) -> ToOperator:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.settimeout(ANSWER_S)
            connection.connect(str(path))
        except OSError as fault:
            raise Failed(
                f"no daemon at {path}: {fault.strerror or fault}; start dsv41-proxyd, or give --socket"
            ) from fault
        channel: Channel[ToOperator] = operator_end(connection)
        try:
            _answer(channel, OperatorHello(protocol=PROTOCOL_VERSION))
            return _answer(channel, request)
        except ChannelTimeout as fault:
            raise Failed(f"the daemon at {path} does not answer: {fault}") from fault
        except (ChannelClosed, BadMessage) as fault:
            raise Failed(f"the daemon at {path}: {fault}") from fault


def _answer(channel: Channel[ToOperator], request: Message) -> ToOperator:
    channel.send(request)
    received = channel.receive(ANSWER_S)
    received.close_fds()
    if isinstance(received.message, Refused):
        raise Failed(f"refused ({received.message.code}): {received.message.reason}")
    return received.message


if __name__ == "__main__":
    sys.exit(main())
