# SPDX-License-Identifier: Apache-2.0
"""
The file of an ``ipc://`` endpoint: one worker a path, and nothing of others removed.

libzmq unlinks whatever lies at the path before it binds: a file of somebody's, or the socket of a worker that serves there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat

from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
    lock_path = path.with_name(path.name + ".lock")
    lock = _take_lock(path, lock_path)
    try:
        _check(path)
        yield
    finally:
        # Removed while still held, see _take_lock.
        with contextlib.suppress(FileNotFoundError):
            lock_path.unlink()
        os.close(lock)


def path_of(endpoint: str) -> Path | None:
    """Return where the socket of an endpoint is to lie, None where it is no file of that name."""
    name = endpoint.removeprefix(IPC)
    return Path(name) if endpoint.startswith(IPC) and name[:1] != "@" and name != "*" else None


def _take_lock(path: Path, lock_path: Path) -> int:
    while True:
        try:
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as fault:
            raise BindFault(f"cannot make {lock_path}: {fault.strerror}") from fault
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The worker before may have removed the file between our open and our lock: then it locks nobody out.
            if os.fstat(lock).st_nlink > 0:
                return lock
        except BlockingIOError:
            os.close(lock)
            raise BindFault(f"another worker serves {path}: stop it, or give this one another --bind") from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


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
