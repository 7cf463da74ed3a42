# SPDX-License-Identifier: Apache-2.0
"""The test builds of the C modules, and the file by which a process that runs one is stopped, or stalled, at a named point."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import subprocess
import sys

from pathlib import Path
from typing import Final, Literal


Module = Literal["proxyd._daemon", "engine_shim._engine"]
# Of the daemon's loop, in the order of a round. native/*.c has each of them once.
POINTS: Final = ("rest", "taken", "gathered", "sent", "replied", "stored", "decided", "released")
WATCHDOG_POINT: Final = "swapped"  # of the engine's watchdog: a round is expired, and not released yet
FILE_VARIABLE: Final = "HF_FAILPOINTS_FILE"
BUILD_S: Final = 180.0
_NATIVE: Final = Path(__file__).resolve().parent.parent.parent / "native"
_FILE: Final = struct.Struct("=I28sQQQ")  # struct hf_failpoints: armed, name, stopped_ns, stall_ns, beat_ns
_ARMED: Final = struct.Struct("=I")


class NoFailpointsError(Exception):
    """The test build cannot be made here; the message says why."""


def build(module: Module) -> str:
    """
    Return what the launcher takes (failing.py): the module's name and its build with failpoints.

    Built now, unless it was built from these sources before. Raises NoFailpointsError.
    """
    script = _NATIVE / "build_ffi.py"
    if not script.exists():
        raise NoFailpointsError("there are no C sources beside the package: this is no source tree")
    directory = _cache() / f"{_sources()}-py{sys.version_info.major}.{sys.version_info.minor}"
    made = directory / f"{module.partition('.')[2]}.abi3.so"
    if not made.exists():
        command = [sys.executable, str(script), "--failpoints", str(directory)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_S)
        if ended.returncode != 0 or not made.exists():
            raise NoFailpointsError(f"{module} cannot be built with failpoints: {ended.stderr.strip()[-400:]}")
    return f"{module}={made}"


def _sources() -> str:
    """Return a hash of everything that the module is made of."""
    found = hashlib.sha256()
    for path in sorted((*_NATIVE.glob("[!_]*.[ch]"), _NATIVE / "build_ffi.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _cache() -> Path:
    """
    Return where builds are kept: in the tree, which ignores it, or, where that is not ours, in our cache.

    Never where others may write: what lies there is loaded.
    """
    root = _NATIVE.parent
    if os.access(root, os.W_OK):
        return root / "build" / "failpoints"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsv41-failpoints"


class Control:
    """The file that both sides map. Times are CLOCK_MONOTONIC, ns; 0: not yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(_FILE.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _FILE.size)

    def close(self) -> None:
        """Unmap it."""
        self._map.close()

    def arm(self, point: str, stall_s: float = 0.0) -> None:
        """The next time that a process comes to this point, it stops itself; or the thread alone sleeps for so long."""
        _FILE.pack_into(self._map, 0, 0, point.encode(), 0, int(stall_s * 1e9), self.beat_ns)
        _ARMED.pack_into(self._map, 0, 1)

    def disarm(self) -> None:
        """Nobody is stopped."""
        _ARMED.pack_into(self._map, 0, 0)

    @property
    def stopped_ns(self) -> int:
        """When a daemon stopped itself."""
        return int(_FILE.unpack_from(self._map, 0)[2])

    @property
    def beat_ns(self) -> int:
        """When a daemon beat last."""
        return int(_FILE.unpack_from(self._map, 0)[4])
