# SPDX-License-Identifier: Apache-2.0
"""
Whom an engine takes for its daemon: by the user that each message of the handshake comes from, as the kernel says it.

Whoever could have put the socket where it is is trusted, since the engine's settings point there: root, the engine's own
user, the owner of the socket's directory; also the owner of the socket, where nobody else may write in that directory (a socket
unit's SocketUser=). In a directory where many may write, such as /tmp, anybody can lay a socket of his own.
"""

from __future__ import annotations

import os
import stat

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from engine_shim.errors import HandshakeFailed
from hostflag.channel import Credentials


OVERFLOW_UID: Final = Path("/proc/sys/kernel/overflowuid")
NOBODY: Final = 65_534


def trusted_uids(path: Path, named: Iterable[int] = ()) -> frozenset[int]:
    """Return the users as whom the daemon at ``path`` may run; ``named`` are trusted wherever the socket lies."""
    # In a user namespace everybody who is not mapped has the overflow number: it is nobody's, unless somebody names it.
    owners = set(_owners(path)) - {_overflow_uid()}
    return frozenset({0, os.geteuid(), *owners, *named})


def check_sender(sender: Credentials | None, trusted: frozenset[int]) -> None:
    """Raise HandshakeFailed where a message came from none of them."""
    if sender is None:
        raise HandshakeFailed("the kernel does not say who answers at the socket: it cannot be taken for the daemon")
    if sender.uid not in trusted:
        allowed = ", ".join(map(str, sorted(trusted)))
        raise HandshakeFailed(
            f"whoever answers at the socket (pid {sender.pid}) runs as uid {sender.uid}, and a daemon is only taken from uid "
            f"{allowed}: name it (VLLM_DSPARK_REMOTE_DAEMON_USERS, or daemon_uids) if that is the daemon's user"
        )


def _owners(path: Path) -> Iterator[int]:
    try:
        place = path.resolve()
        directory = place.parent.stat()
        yield directory.st_uid
        if not directory.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            yield place.lstat().st_uid
    except OSError:
        return  # it went away meanwhile


def _overflow_uid() -> int:
    try:
        return int(OVERFLOW_UID.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return NOBODY
