# SPDX-License-Identifier: Apache-2.0
"""``dsv41-proxyctl``: looks at a running daemon, drains it, reloads it, leads it to other workers."""

from __future__ import annotations

import argparse
import os
import pwd
import re
import sys

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hostflag.defaults import ENGINE_SOCKET
from hostflag.messages import Drain, Dump, DumpRequest, Reload, Resume, Status, StatusRequest, SwitchWorker
from hostflag.version import VERSION
from proxyd.links.endpoints import checked_endpoints
from proxyd.operator import ctltext, keygen, output, outside, qualify
from proxyd.operator.ctlclient import LISTENS_S, Client, Failed, Silent, Unreachable


EXIT_FAILED: Final = 1
EXIT_UNREACHABLE: Final = 3
EXIT_NOT_HEALTHY: Final = 4
EXIT_UNWRITTEN: Final = 5
SOCKET_VARIABLE: Final = (
    "DSV41_PROXYD_ENGINE_SOCKET"  # the daemon's own: what the unit sets counts for its ExecReload=, too
)
ANSWER_S: Final = 10.0
MOST_ROUNDS: Final = 255
MOST_REASON_LETTERS: Final = 200
_EPILOG: Final = """\
exit status:
  0  done; for status: the daemon is healthy
  1  the daemon refused, or failed; the reason is on standard error; for qualify: rounds must be synchronous
  2  wrong arguments
  3  no daemon could be asked; for qualify also: no CUDA driver, or the daemon went away meanwhile
  4  status only: the daemon is not healthy, or does not answer
  5  done, but what there is to say could not be written to standard output

examples:
  dsv41-proxyctl status                        # what it does, why it is not healthy
  dsv41-proxyctl status --json | jq .reasons
  dsv41-proxyctl drain --reason 'kernel update' && ... && dsv41-proxyctl resume
  dsv41-proxyctl dump --rounds 50              # the last rounds, step by step
  dsv41-proxyctl switch-worker tcp://b:5741 tcp://a:5741
  dsv41-proxyctl COMMAND --help                # more about one of them
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Do one command. Returns the exit status, see ``--help``."""
    options = _parser().parse_args(argv)
    try:
        text, status = options.run(options)
    except Failed as fault:
        output.complain(str(fault))
        return EXIT_UNREACHABLE if isinstance(fault, Unreachable) else EXIT_FAILED
    try:
        output.write(text + "\n")
    except OSError as fault:
        output.complain(f"done, but its output cannot be written: {fault.strerror}")
        return EXIT_UNWRITTEN
    return int(status)


def _status(options: argparse.Namespace) -> tuple[str, int]:
    try:
        with Client(options.socket, options.timeout) as client:
            status = client.ask(StatusRequest(), options.timeout)
    except Silent as fault:
        look = outside.look(fault.pid)
        return ctltext.as_json(look) if options.json else ctltext.look_text(look, str(fault)), EXIT_NOT_HEALTHY
    if not isinstance(status, Status):
        raise Failed(f"the daemon answered {type(status).__name__}")
    text = ctltext.as_json(status) if options.json else ctltext.status_text(status)
    return text, 0 if status.healthy else EXIT_NOT_HEALTHY


def _drain(options: argparse.Namespace) -> tuple[str, int]:
    with Client(options.socket) as client:
        return client.do(Drain(reason=options.reason), ANSWER_S), 0


def _resume(options: argparse.Namespace) -> tuple[str, int]:
    with Client(options.socket) as client:
        return client.do(Resume(), ANSWER_S), 0


def _reload(options: argparse.Namespace) -> tuple[str, int]:
    with Client(options.socket) as client:
        return client.do(Reload(), ANSWER_S), 0


def _switch(options: argparse.Namespace) -> tuple[str, int]:
    with Client(options.socket) as client:
        return client.do(SwitchWorker(endpoints=options.endpoints), ANSWER_S), 0


def _dump(options: argparse.Namespace) -> tuple[str, int]:
    try:
        with Client(options.socket) as client:
            dumps = _dumps(client, options.session, options.rounds)
    except Silent as fault:
        look = outside.look(fault.pid, options.rounds)
        if not look.regions:
            raise Unreachable(f"{fault}; {look.lacks or 'it has no region open'}") from fault
        return ctltext.as_json(look) if options.json else ctltext.look_dump_text(look), 0
    return ctltext.as_json(dumps) if options.json else "\n".join(map(ctltext.dump_text, dumps)) or "no sessions", 0


def _dumps(client: Client, session: str | None, rounds: int) -> list[Dump]:
    status = client.ask(StatusRequest(), ANSWER_S)
    if not isinstance(status, Status):
        raise Failed(f"the daemon answered {type(status).__name__}")
    numbers = [session] if session else [each.session for each in status.sessions]
    dumps = [client.ask(DumpRequest(session=number, rounds=rounds), ANSWER_S) for number in numbers]
    return [dump for dump in dumps if isinstance(dump, Dump)]


class _Endpoints(argparse.Action):
    """All endpoints at once: the same one twice is a mistake of the whole list."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, *_: object
    ) -> None:
        try:
            setattr(namespace, self.dest, checked_endpoints(values if isinstance(values, list) else [str(values)]))
        except ValueError as fault:
            parser.error(str(fault))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dsv41-proxyctl",
        description="Speaks to a running dsv41-proxyd, as root or as the user that it runs as.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        default=Path(os.environ.get(SOCKET_VARIABLE) or ENGINE_SOCKET),
        help=f"where the daemon listens (default: ${SOCKET_VARIABLE}, else {ENGINE_SOCKET})",
    )
    parser.add_argument("--version", action="version", version=f"dsv41-proxyctl {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_looks(commands)
    _add_deeds(commands)
    return parser


def _add_looks(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    status = commands.add_parser(
        "status",
        help="whether it is healthy and why not, its worker, its sessions",
        description="Says how the daemon is. Where it does not answer, for example since it was stopped, its process and the "
        "regions that it shares with engines are looked at through /proc instead, so far as the rights go.",
    )
    status.add_argument(
        "--json", action="store_true", help='for programs: type "STATUS", or "SILENT" where it does not answer'
    )
    status.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds,
        default=LISTENS_S,
        help="how long to wait for it (default: %(default)s s)",
    )
    status.set_defaults(run=_status)
    dump = commands.add_parser(
        "dump",
        help="the last rounds, with what each of their parts took",
        description="Prints the engines' flight recorders. Times in us: gather, from submitted to gathered; seen, until the daemon saw "
        "that; send, to hand the rows over; network, from then to the reply; own, from the reply to the verdict; total, from "
        "gathered to the verdict. A star: the round only shipped rows.",
    )
    dump.add_argument(
        "--session", metavar="ID", type=_session, help="of this session (16 hex digits); otherwise of all"
    )
    dump.add_argument(
        "--rounds",
        metavar="N",
        type=_rounds,
        default=20,
        help=f"so many of each, 1 to {MOST_ROUNDS} (default: %(default)s)",
    )
    dump.add_argument("--json", action="store_true", help="for programs: times in ns since submitted_ns")
    dump.set_defaults(run=_dump)


def _add_deeds(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    drain = commands.add_parser(
        "drain",
        help="no new rounds and no new sessions; sessions stay",
        description="Engines decode without drafts until `resume`, in the sessions they have. Rounds in flight end as they would: "
        "they are waited for, up to 2 s.",
    )
    drain.add_argument(
        "--reason",
        metavar="TEXT",
        type=_reason,
        default=f"drained by {_user()}",
        help="what engines, /healthz and the log are told",
    )
    drain.set_defaults(run=_drain)
    resume = commands.add_parser("resume", help="end a drain")
    resume.set_defaults(run=_resume)
    reload = commands.add_parser(
        "reload",
        help="read the configuration again, as at SIGHUP",
        description="Says what changed and what needs a restart. A configuration with a fault changes nothing: exit status 1.",
    )
    reload.set_defaults(run=_reload)
    switch = commands.add_parser(
        "switch-worker", help="use these worker endpoints from now on, the first that answers; sessions go on"
    )
    switch.add_argument(
        "endpoints", metavar="ENDPOINT", nargs="+", action=_Endpoints, help="tcp:// or ipc://, the most preferred first"
    )
    switch.set_defaults(run=_switch)
    keygen.add_to(commands)
    qualify.add_to(commands)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _reason(text: str) -> str:
    if not text or not text.isprintable() or len(text) > MOST_REASON_LETTERS:
        raise argparse.ArgumentTypeError(f"a reason has 1 to {MOST_REASON_LETTERS} printable letters")
    return text


def _session(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{16}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no session: 16 hex digits, as `status` shows them")
    return text


def _rounds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_ROUNDS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MOST_ROUNDS}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds <= 600.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 600")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
