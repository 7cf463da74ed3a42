# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41_rehearse.drills.inside FILE MODULE ...``: becomes MODULE in the network namespace that FILE is of."""

from __future__ import annotations

import ctypes
import os
import sys

from typing import Final


CLONE_NEWNET: Final = 0x40000000


def enter(path: str) -> None:
    """Go into a network namespace, this thread. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, CLONE_NEWNET) < 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    finally:
        os.close(fd)


def leave() -> None:
    """Go into a new network namespace of one's own, this thread. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")


def main() -> None:
    """Enter, then become the program."""
    enter(sys.argv[1])
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[2:]])  # noqa: S606 no shell is wanted


if __name__ == "__main__":
    main()
