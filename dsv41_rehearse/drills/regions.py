# SPDX-License-Identifier: Apache-2.0
"""Regions from outside: which process has which, and every byte of one."""

from __future__ import annotations

import os
import time

from pathlib import Path
from typing import Final

from hostflag import geometry as geometries
from hostflag._hostflag import ffi, lib
from hostflag.messages import Geometry


_MARK: Final = "/memfd:"
_REST_S: Final = 3.0
_BEAT, _WAITING = 1, 3


def mapped_by(pid: int) -> set[int]:
    """Return the inodes of the memfds that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if _MARK in line}


def held_by(pid: int) -> set[int]:
    """Return the inodes of the memfds that a process has descriptors of."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if str(entry.readlink()).startswith(_MARK):
                found.add(entry.stat().st_ino)
        except FileNotFoundError:
            continue
    return found


def content(inode: int) -> bytes:
    """Return every byte of a region that this process has a descriptor of. Raises LookupError where it has none."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith(_MARK) or entry.stat().st_ino != inode:
                continue
            size = entry.stat().st_size
        except FileNotFoundError:
            continue
        return os.pread(int(entry.name), size, 0)
    raise LookupError(f"this process has no descriptor of the region with inode {inode}")


def at_rest(inode: int, geometry: Geometry) -> bytes:
    """Return a region's bytes without its daemon's pulse, once they stay the same for a moment. Raises TimeoutError."""
    until = time.monotonic() + _REST_S
    before = without_pulse(content(inode), geometry)
    while time.monotonic() < until:
        time.sleep(0.02)
        now = without_pulse(content(inode), geometry)
        if now == before:
            return now
        before = now
    raise TimeoutError("the region did not come to rest with nobody submitting")


def without_pulse(whole: bytes, geometry: Geometry) -> bytes:
    """Return it with the two words blanked that a daemon at rest goes on writing: its beat, and whether it sleeps."""
    # Lines of struct hf_daemon_words: retired, beat, phase, waiting.
    layout = ffi.new("struct hf_layout *")
    if lib.hf_layout_of(geometries.to_c(geometry), layout) != 0:
        raise ValueError("that is no geometry")
    blanked = bytearray(whole)
    for word in (_BEAT, _WAITING):
        at = layout.daemon_words + word * lib.HF_LINE
        blanked[at : at + 4] = bytes(4)
    return bytes(blanked)


def difference(before: bytes, after: bytes) -> str | None:
    """Return where two contents differ first, None where they are the same."""
    if before == after:
        return None
    first = next(i for i, (was, now) in enumerate(zip(before, after, strict=True)) if was != now)
    return f"from byte {first} on"
