# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of an engine socket, by the kernel's word."""

from __future__ import annotations

import socket
import struct

from dataclasses import dataclass
from typing import Final


_UCRED: Final = struct.Struct("3i")
MAX_TEXT: Final = 400


@dataclass(frozen=True, slots=True)
class Peer:
    """As of ``connect``. ``pid`` is 0 where the peer lives in a process namespace that this one cannot see."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return the credentials of a connected Unix socket's peer (SO_PEERCRED)."""
    return Peer(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def printable(text: str) -> str:
    """Return what a peer said so that it can be written to a log or a terminal: no control characters, not endless."""
    short = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."
    return "".join(letter if letter.isprintable() else "?" for letter in short)
