# SPDX-License-Identifier: Apache-2.0
"""
The file of an ``ipc://`` endpoint: one worker a path, and nothing of others removed.

libzmq unlinks whatever lies at the path before it binds: a file of somebody's, or the socket of a worker that serves there.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import stat

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hostflag import pathlock
from refworker.endpoint import BindFault


IPC: Final = "ipc://"
PROBE_TIMEOUT_S: Final = 1.0


@contextlib.contextmanager
def place(endpoint: str) -> Iterator[None]:
    """
    Keep other workers away from the path of an endpoint, once it is seen that nothing but a stale socket lies there.

    Raises BindFault. For TCP, abstract names and names that libzmq is to pick there is nothing to do.
    """
    path = path_of(endpoint)
    if path is None:
        yield
        return
    if not path.name:
        raise BindFault(f"{path} is a directory, and no path of a socket")
    lock = _take_lock(path)
    try:
        _check(path)
        yield
    finally:
        pathlock.drop(path, lock)


def path_of(endpoint: str) -> Path | None:
    """Return where the socket of an endpoint is to lie, None where it is no file of that name."""
    name = endpoint.removeprefix(IPC)
    return Path(name) if endpoint.startswith(IPC) and name[:1] != "@" and name != "*" else None


def _take_lock(path: Path) -> int:
    try:
        return pathlock.take(path)
    except BlockingIOError:
        raise BindFault(f"another worker serves {path}: stop it, or give this one another --bind") from None
    except OSError as fault:
        raise BindFault(f"cannot make {pathlock.lock_of(path)}: {fault.strerror}") from fault


def _check(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise BindFault(f"{path} is there and is no socket: it is left alone; remove it, or give another --bind")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_TIMEOUT_S)
            answer = probe.connect_ex(str(path))
    except FileNotFoundError:
        return
    except OSError as fault:
        raise BindFault(f"cannot bind {path}: {fault.strerror or fault}") from fault
    if answer not in {errno.ECONNREFUSED, errno.ENOENT}:  # refused: nobody listens there, and libzmq replaces it
        raise BindFault(f"somebody listens on {path} already: stop it, or give this worker another --bind")
