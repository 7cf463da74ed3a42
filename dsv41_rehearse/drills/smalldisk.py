# SPDX-License-Identifier: Apache-2.0
"""A disk of its own that can be filled: a tmpfs of a few pages."""

from __future__ import annotations

import contextlib
import os
import subprocess

from pathlib import Path
from types import TracebackType
from typing import Final


_KIB: Final = 256
_MOUNT_S: Final = 10.0


class NoMountError(Exception):
    """There can be none here; the message says why."""


class SmallDisk:
    """A context manager: mounted at ``path``, which is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def __enter__(self) -> SmallDisk:
        self.path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={_KIB}k", "tmpfs", str(self.path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MOUNT_S)
        except FileNotFoundError as fault:
            raise NoMountError("there is no mount command") from fault
        if done.returncode != 0:
            raise NoMountError(f"a tmpfs cannot be mounted: {done.stderr.strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Lazily: a process that is about to end may still have its log open there.
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=True, timeout=_MOUNT_S)

    def fill(self, log: str) -> None:
        """Take all the room that there is, also what is left of the last page of that log: by empty lines."""
        for path, what in ((self._filler, bytes(4096)), (self._filler, b"\0"), (self.path / log, b"\n")):
            with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(what)

    @property
    def full(self) -> bool:
        """Whether nothing more can be written."""
        left = os.statvfs(self.path)
        return left.f_bfree == 0

    def empty(self) -> None:
        """Give it back."""
        self._filler.unlink()
