# SPDX-License-Identifier: Apache-2.0
"""The worker's socket and where it is bound."""

from __future__ import annotations

import contextlib
import os

from pathlib import Path
from typing import Final

import zmq

from hostflag.keys import SecretKey
from hostflag.wire import MAX_PART_BYTES


# A session has one round outstanding and a few context-only ones behind it; more than that waits in the peer.
QUEUED_MESSAGES: Final = 16
RECEIVE_TIMEOUT_MS: Final = 50  # also how often floods are looked for
HEARTBEAT_MS: Final = 5_000
HEARTBEAT_LIMIT_MS: Final = 15_000
HANDSHAKE_LIMIT_MS: Final = 5_000
ZAP_DOMAIN: Final = b"dsv41"


class BindFault(Exception):
    """The endpoint cannot be bound; the text says why."""


def make_router(context: zmq.Context[zmq.Socket[bytes]], key: SecretKey | None = None) -> zmq.Socket[bytes]:
    """Return a ROUTER to be bound; with ``key`` it takes only peers that know its public half, and asks ZAP about theirs."""
    socket = context.socket(zmq.ROUTER)
    options: dict[int, int] = {
        zmq.LINGER: 0,
        zmq.MAXMSGSIZE: MAX_PART_BYTES,
        zmq.RCVHWM: QUEUED_MESSAGES,
        zmq.SNDHWM: QUEUED_MESSAGES,
        zmq.RCVTIMEO: RECEIVE_TIMEOUT_MS,
        zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
        zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_LIMIT_MS,
        zmq.HEARTBEAT_TTL: HEARTBEAT_LIMIT_MS,
        zmq.HANDSHAKE_IVL: HANDSHAKE_LIMIT_MS,
        zmq.ROUTER_MANDATORY: 1,  # a reply that cannot leave is an error that is counted
    }
    for option, value in options.items():
        socket.setsockopt(option, value)
    if key is not None:
        key.use(socket)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)  # without a domain nobody would be asked
    return socket


def bind(router: zmq.Socket[bytes], endpoint: str) -> str:
    """
    Bind; ``tcp://HOST:0`` or ``tcp://HOST:*`` picks a port. Returns where it is.

    Raises BindFault.
    """
    try:
        router.setsockopt(zmq.IPV6, int("[" in endpoint))
        router.bind(endpoint)
    except (zmq.ZMQError, ValueError) as error:
        raise BindFault(f"cannot bind {endpoint}: {error}") from error
    return router.getsockopt_string(zmq.LAST_ENDPOINT)


class OwnFile:
    """A file that this worker made. Removed at the end, unless another one has taken its place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = self._seen()

    def remove(self) -> None:
        """Remove the file; what stands in its place stays."""
        with contextlib.suppress(FileNotFoundError):
            if self._seen() == self._mark:
                self._path.unlink()

    def _seen(self) -> tuple[int, int, int]:
        # The time too: a number is given to the next file at once.
        status = self._path.stat()
        return status.st_dev, status.st_ino, status.st_mtime_ns


def write_endpoint(path: Path, endpoint: str) -> OwnFile:
    """
    Say where the worker is bound, for whoever started it with a port to be picked: all of it or nothing is there.

    Raises BindFault.
    """
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_text(endpoint + "\n", encoding="utf-8")
        staged.replace(path)
        return OwnFile(path)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise BindFault(f"cannot write {path}: {error.strerror}") from error


def socket_file(endpoint: str) -> OwnFile | None:
    """Return the file of a bound Unix socket: libzmq leaves it behind. None for TCP and abstract names."""
    path = Path(endpoint.removeprefix("ipc://"))
    return OwnFile(path) if endpoint.startswith("ipc://") and path.is_socket() else None
