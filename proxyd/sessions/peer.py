# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of an engine socket, by the kernel's word."""

from __future__ import annotations

import socket
import struct

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


_UCRED: Final = struct.Struct("iII")
_SO_PEERGROUPS: Final = 59  # asm-generic/socket.h; x86-64 and arm64 have it so
_MOST_BYTES: Final = 1024  # of groups: more Python does not ask for
MAX_TEXT: Final = 400


@dataclass(frozen=True, slots=True)
class Peer:
    """
    As of ``connect``. ``pid`` is 0 where the peer lives in a process namespace that this one cannot see.

    ``groups``: its own and its supplementary ones.
    """

    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()


def peer_of(connection: socket.socket) -> Peer:
    """Return the credentials of a connected Unix socket's peer (SO_PEERCRED, SO_PEERGROUPS)."""
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid, gid, frozenset({gid, *_groups_of(connection)}))


def _groups_of(connection: socket.socket) -> Iterator[int]:
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)
    except OSError:
        return  # too many to be told: then only its own group counts
    yield from (number for (number,) in struct.iter_unpack("I", raw))


def printable(text: str) -> str:
    """Return what a peer said so that it can be written to a log or a terminal: no control characters, not endless."""
    short = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."
    return "".join(letter if letter.isprintable() else "?" for letter in short)
