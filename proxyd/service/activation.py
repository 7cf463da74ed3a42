# SPDX-License-Identifier: Apache-2.0
"""Sockets that systemd opened for us (LISTEN_FDS): taken once, checked, and never handed on to a child."""

from __future__ import annotations

import os
import socket
import stat

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from proxyd.errors import StartError


FIRST_FD: Final = 3
MAX_FDS: Final = 64
ENGINE: Final = "engine"  # FileDescriptorName= of the engine socket


@dataclass(frozen=True, slots=True)
class PassedSocket:
    """The engine socket as it was handed to us: its file is systemd's, which keeps it between two daemons."""

    listening: socket.socket
    path: Path

    def close(self) -> None:
        """Leave everything as it is. The caller has closed, or handed over, ``listening``."""


def take(environment: MutableMapping[str, str]) -> PassedSocket | None:
    """
    Return the engine socket that systemd passed: the one named "engine", or the only one of the right kind. None where it passed none.

    The environment is cleared of it, and descriptors that are not ours to use are closed. Raises StartError where sockets were
    passed and none can be the engine socket, with what to write into the unit.
    """
    count, pid = environment.pop("LISTEN_FDS", ""), environment.pop("LISTEN_PID", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    environment.pop("LISTEN_PIDFDID", None)
    if pid != str(os.getpid()) or not count.isascii() or not count.isdigit() or int(count) == 0:
        return None  # nothing was passed, or it was not meant for us
    if int(count) > MAX_FDS:
        raise StartError(f"systemd says that it passed {count} descriptors, more than the {MAX_FDS} that can be right")
    fds = range(FIRST_FD, FIRST_FD + int(count))
    faults = {fd: _fault(fd) for fd in fds}
    chosen = _choose(dict(zip(fds, names, strict=False)), faults)
    for fd in fds:
        if fd != chosen and faults[fd] != "not open":
            os.close(fd)
    if chosen is None:
        found = "; ".join(f"{fd}: {fault or 'a listening SOCK_SEQPACKET socket'}" for fd, fault in faults.items())
        raise StartError(
            f"systemd passed no engine socket ({found}): the socket unit needs one ListenSequentialPacket=, or "
            f"FileDescriptorName={ENGINE} on the right one"
        )
    listening = socket.socket(fileno=chosen)
    listening.set_inheritable(False)
    return PassedSocket(listening, Path(os.fsdecode(listening.getsockname())))


def _choose(names: dict[int, str], faults: dict[int, str | None]) -> int | None:
    named = [fd for fd, name in names.items() if name == ENGINE]
    fitting = [fd for fd in (named or faults) if faults[fd] is None]
    return fitting[0] if len(fitting) == 1 else None


def _fault(fd: int) -> str | None:
    """Return why a descriptor cannot be the engine socket, None where it can."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return "no socket"
    except OSError:
        return "not open"
    probe = socket.socket(fileno=fd)
    try:
        if probe.family != socket.AF_UNIX or probe.type != socket.SOCK_SEQPACKET:
            return "no Unix SOCK_SEQPACKET socket"
        if not probe.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return "a socket that does not listen"
        return None
    finally:
        probe.detach()
