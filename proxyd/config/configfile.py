# SPDX-License-Identifier: Apache-2.0
"""The file of the configuration, read from whatever its path leads to: never without end, never waiting, never a device opened."""

from __future__ import annotations

import os
import stat
import sys

from pathlib import Path
from typing import Any, Final

from proxyd.config.faults import Fault


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


DEFAULT_FILE: Final = Path("/etc/dsv41-proxyd/proxyd.toml")
# A setting takes a line or two. What the parser may take for a file made to hurt grows with the square of this.
MAX_BYTES: Final = 16 << 10


class FileFault(Exception):
    """``fault`` says why nothing of the file can be used."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.fault = Fault(source=str(path), reason=reason)


def read(path: Path) -> dict[str, Any]:
    """Return what the file says, as TOML has it. Raises FileNotFoundError where no file of that name is, else FileFault."""
    try:
        raw = _read(path)
    except FileNotFoundError as fault:
        if path.is_symlink():
            raise FileFault(path, f"leads to {path.readlink()}, which does not exist") from fault
        raise
    except (OSError, ValueError) as fault:  # ValueError: a NUL in the path
        reason = fault.strerror if isinstance(fault, OSError) else fault
        raise FileFault(path, f"cannot be read by uid {os.geteuid()}: {reason}") from fault
    return parsed(path, raw)


def parsed(path: Path, raw: bytes) -> dict[str, Any]:
    """Return what ``raw``, read from ``path``, says. Raises FileFault where it is no TOML."""
    try:
        return tomllib.loads(raw.decode())
    except UnicodeDecodeError as fault:
        raise FileFault(path, f"is not UTF-8 at byte {fault.start}") from fault
    except RecursionError as fault:
        raise FileFault(path, "nests arrays or tables too deep") from fault
    except ValueError as fault:  # TOMLDecodeError, and what int() and datetime() find wrong with a number
        raise FileFault(path, f"is not TOML: {fault}") from fault


def _read(path: Path) -> bytes:
    # Before open, too: to open a device or a FIFO can have effects of its own.
    _must_be_regular(path, path.stat().st_mode)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _must_be_regular(path, os.fstat(fd).st_mode)
        raw = b""
        while len(raw) <= MAX_BYTES and (more := os.read(fd, MAX_BYTES + 1 - len(raw))):
            raw += more
    finally:
        os.close(fd)
    if len(raw) > MAX_BYTES:
        raise FileFault(path, f"is larger than {MAX_BYTES} bytes")
    return raw


def _must_be_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a FIFO" if stat.S_ISFIFO(mode) else "a device or socket"
        raise FileFault(path, f"is {what}, not a file")
