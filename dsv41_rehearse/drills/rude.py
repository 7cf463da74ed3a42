# SPDX-License-Identifier: Apache-2.0
"""
``python -m dsv41_rehearse.drills.rude FILE ...``: a daemon that treats the newest session's socket as none should, once FILE says how.

The round loop has its own duplicate of that socket and goes on. ``close``: the control plane's end is closed behind its back.
``half-close``: nothing more will be said (a read of 0 bytes at the engine). ``empty``: an empty packet (the same, once).
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from proxyd import __main__ as daemon
from proxyd.sessions.roundloop import RoundLoop


POLL_S: Final = 0.005
_held: Final[list[socket.socket]] = []  # what stands where a closed socket was: open as long as the process lives


def _close(fd: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _held.append(theirs)
    os.dup2(ours.detach(), fd, inheritable=False)


def _half_close(fd: int) -> None:
    with socket.socket(fileno=os.dup(fd)) as duplicate:
        duplicate.shutdown(socket.SHUT_WR)


def _empty(fd: int) -> None:
    with socket.socket(fileno=os.dup(fd)) as duplicate:
        duplicate.send(b"")


MISDEEDS: Final[dict[str, Callable[[int], None]]] = {"close": _close, "half-close": _half_close, "empty": _empty}


def ask(file: Path, misdeed: str) -> None:
    """Have it done; the file is gone once it is."""
    staged = file.with_suffix(".new")
    staged.write_text(misdeed)
    staged.rename(file)


def _obey(file: Path, newest: list[int]) -> None:
    while True:
        time.sleep(POLL_S)
        if newest and file.exists():
            MISDEEDS[file.read_text()](newest[-1])
            file.unlink()


def main() -> int:
    """Become the daemon, with a thread beside it that does as it is told."""
    file, *arguments = sys.argv[1:]
    newest: list[int] = []
    begin = RoundLoop.__init__

    def remember(self: RoundLoop, region_fd: int, socket_fd: int, *others: Any, **named: Any) -> None:
        begin(self, region_fd, socket_fd, *others, **named)
        newest.append(socket_fd)

    RoundLoop.__init__ = remember  # type: ignore[method-assign]
    threading.Thread(target=_obey, args=(Path(file), newest), daemon=True).start()
    return daemon.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
