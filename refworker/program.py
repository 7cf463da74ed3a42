# SPDX-License-Identifier: Apache-2.0
"""What ``dsv41-refworker`` does: drafts for the daemons that connect to it."""

from __future__ import annotations

import argparse
import contextlib
import errno
import math
import os
import secrets
import signal
import socket

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog
import zmq

from hostflag import audit, logging
from hostflag.defaults import WORKER_ENDPOINT
from hostflag.keys import KeyFault, SecretKey, read_allowed, read_secret
from hostflag.stderr import Stderr, fill_standard_descriptors
from hostflag.version import VERSION
from refworker.drafter import Drafter
from refworker.endpoint import BindFault, bind, make_router, socket_file, write_endpoint
from refworker.gate import Gate
from refworker.ipcfile import place
from refworker.loading import BUILT_IN, LoadFault, drafter_class
from refworker.server import Server
from refworker.sessions import MAKES_ROOM_S, SILENCE_S, Sessions


EX_SOFTWARE: Final = 70
EX_CONFIG: Final = 78
SPARE_DESCRIPTORS: Final = 24  # a dozen for libzmq and the gate, and some for connections
SILENT_LEAST_S: Final = 5.0  # two PINGs of a daemon at rest may be lost

_log = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    fill_standard_descriptors()
    parser = _parser()
    arguments = parser.parse_args(argv)
    if (arguments.curve_secret_key_file is None) is not (arguments.curve_allowed_keys_file is None):
        parser.error("--curve-secret-key-file and --curve-allowed-keys-file go together: give both, or neither")
    try:
        chosen = drafter_class(arguments.drafter)
    except LoadFault as error:
        parser.error(f"--drafter: {error}")
    with contextlib.redirect_stderr(Stderr()):
        logging.configure(arguments.log_level, arguments.log_format)
        try:
            return _serve(arguments, chosen)
        except (BindFault, KeyFault) as error:
            _log.error("cannot start", reason=str(error))
            return EX_CONFIG


def _serve(arguments: argparse.Namespace, chosen: type[Drafter]) -> int:
    key, allowed = _keys(arguments)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(_audited(arguments.audit)) if arguments.audit else None
        try:
            chosen.load()
        except Exception:  # noqa: BLE001  a drafter is anybody's code
            _log.exception("cannot start", reason=f"drafter {arguments.drafter} did not load")
            return EX_SOFTWARE
        router, gate = _sockets(stack, key, allowed)
        stack.enter_context(place(arguments.bind))
        endpoint = bind(router, arguments.bind)
        worker = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"[:256]
        server = Server(
            router,
            Sessions(chosen, makes_room_s=arguments.silent_s),
            worker=worker,
            drafter=arguments.drafter[:256],
            delay_s=arguments.delay_ms / 1000,
            audit=writer,
            gate=gate,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: server.stop())
        if (bound := socket_file(endpoint)) is not None:
            stack.callback(bound.remove)
        if arguments.endpoint_file is not None:
            stack.callback(write_endpoint(arguments.endpoint_file, endpoint).remove)
        _log.info(
            "ready",
            endpoint=endpoint,
            drafter=arguments.drafter,
            worker=worker,
            pid=os.getpid(),
            public_key=key.public.decode() if key else None,
        )
        server.run()
    counts = server.counts + gate.counts
    _log.info("stopped", **{name.replace(" ", "_").lower(): count for name, count in sorted(counts.items())})
    return 0


def _sockets(
    stack: contextlib.ExitStack, key: SecretKey | None, allowed: frozenset[bytes] | None
) -> tuple[zmq.Socket[bytes], Gate]:
    try:
        # libzmq ends the process where it lacks one for itself.
        with contextlib.ExitStack() as spare:
            for _ in range(SPARE_DESCRIPTORS):
                spare.callback(os.close, os.eventfd(0, os.EFD_CLOEXEC))
        context = stack.enter_context(zmq.Context(io_threads=1))
        router = stack.enter_context(make_router(context, key))
        return router, stack.enter_context(Gate(context, router, allowed))
    except (OSError, zmq.ZMQError) as error:
        more = ": raise the limit on open files (ulimit -n)" if error.errno == errno.EMFILE else ""
        raise BindFault(f"cannot make its sockets: {error.strerror}{more}") from error


def _keys(arguments: argparse.Namespace) -> tuple[SecretKey | None, frozenset[bytes] | None]:
    if arguments.curve_secret_key_file is None:
        return None, None
    if not zmq.has("curve"):
        raise KeyFault("this libzmq was built without CURVE: install pyzmq's own wheel")
    return read_secret(arguments.curve_secret_key_file), read_allowed(arguments.curve_allowed_keys_file)


@contextlib.contextmanager
def _audited(directory: Path) -> Iterator[audit.AuditWriter]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        writer = audit.AuditWriter(audit.worker_file(directory))
    except OSError as error:
        raise BindFault(f"cannot write the audit in {directory}: {error.strerror}") from error
    try:
        yield writer
    finally:
        try:
            writer.close()
        except OSError as error:
            _log.error("audit not written", reason=error.strerror)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dsv41-refworker",
        description="The reference worker: takes rounds from dsv41-proxyd, returns drafts.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--bind", metavar="ENDPOINT", type=_endpoint, default=WORKER_ENDPOINT, help="port 0 or * picks one")
    add("--endpoint-file", metavar="PATH", type=Path, help="gets the endpoint once it is bound")
    add("--drafter", metavar="NAME", default="mock", help=f"{', '.join(BUILT_IN)} or module:Class")
    add(
        "--delay-ms",
        metavar="MS",
        type=_milliseconds,
        default=0.0,
        help="the least time that a round takes; sessions in turn, as on one GPU",
    )
    add(
        "--silent-s",
        metavar="SECONDS",
        type=_seconds,
        default=MAKES_ROOM_S,
        help="where all places are taken, a session of which nothing was heard for longer makes room for a new one",
    )
    add(
        "--curve-secret-key-file",
        metavar="PATH",
        type=Path,
        help="this worker's secret key: encrypt, and let in only ...",
    )
    add(
        "--curve-allowed-keys-file",
        metavar="PATH",
        type=Path,
        help="... daemons with one of these public keys, one a line",
    )
    add("--audit", metavar="DIR", type=Path, help="write one line a round into DIR/worker-PID.jsonl")
    add("--log-level", choices=logging.LEVELS, default="info", help="the least level that is written")
    add("--log-format", choices=logging.FORMATS, default="auto", help="auto: console on a terminal, else json")
    parser.add_argument("--version", action="version", version=f"dsv41-refworker {VERSION}")
    return parser


def _endpoint(text: str) -> str:
    if not text.startswith(("tcp://", "ipc://")) or len(text) <= len("tcp://"):
        raise argparse.ArgumentTypeError(f"{text!r} is no endpoint: give tcp://HOST:PORT or ipc://PATH")
    return text


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 60_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds from 0 to 60000")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not SILENT_LEAST_S <= value <= SILENCE_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {SILENT_LEAST_S:g} to {SILENCE_S:g}"
        )
    return value
