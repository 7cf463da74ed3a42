# SPDX-License-Identifier: Apache-2.0
"""Descriptors that ride along with a hostile packet: regions, nearly regions, anything else, too many."""

from __future__ import annotations

import contextlib
import fcntl
import os

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fuzz.cursor import Cursor
from fuzz.doorwords import BASE, GEOMETRY
from hostflag import region as regions


HEADER_BYTES: Final = 320
MOST: Final = 253  # more the kernel does not take
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def held() -> int:
    """Return how many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.contextmanager
def descriptors(cursor: Cursor) -> Iterator[list[int]]:
    """Give the descriptors that the input asks for; most ask for none."""
    how = cursor.byte()
    fds: list[int] = []
    try:
        if how >= 128:
            fds.append(_region(cursor, how))
        if how & 0x60 == 0x20:
            fds.append(_anything(cursor))
        if how & 0x7F == 0x7F:
            fds += [os.dup(0) for _ in range(cursor.byte() % (MOST - len(fds)))]
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def _region(cursor: Cursor, how: int) -> int:
    fd = regions.create(GEOMETRY)
    if how & 1:
        regions.rebase(fd, BASE)
    if how & 2:
        at = cursor.number(2) % HEADER_BYTES
        os.pwrite(fd, cursor.take(1 + cursor.byte() % 8), at)
    if how & 4:  # a word of the engine's
        at = 65536 + 128 * (cursor.byte() % 6)
        os.pwrite(fd, cursor.number(4).to_bytes(4, "little"), at)
    return fd


def _anything(cursor: Cursor) -> int:
    kind = cursor.byte() % 3
    if kind == 0:
        return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    fd = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, cursor.number(2) * 16)
    if kind == 1:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd
