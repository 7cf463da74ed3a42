# SPDX-License-Identifier: Apache-2.0
"""A lock on a path: of several programs that start at once, one takes it. The kernel lets go of it for one that dies."""

from __future__ import annotations

import contextlib
import fcntl
import os

from pathlib import Path


def lock_of(path: Path) -> Path:
    """Return the file whose lock stands for ``path``."""
    return path.with_name(path.name + ".lock")


def take(path: Path) -> int:
    """Return the lock of ``path``, a descriptor. Raises BlockingIOError where somebody has it, OSError where it cannot be made."""
    while True:
        lock = os.open(lock_of(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it before may have removed the file between our open and our lock: then it locks nobody out.
            if os.fstat(lock).st_nlink > 0:
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def drop(path: Path, lock: int) -> None:
    """Let go of what ``take`` returned, and remove its file."""
    # Removed while still held, see take.
    with contextlib.suppress(FileNotFoundError):
        lock_of(path).unlink()
    os.close(lock)
