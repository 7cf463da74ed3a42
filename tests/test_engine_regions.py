# SPDX-License-Identifier: Apache-2.0
"""Regions that a daemon should not have sent: each is refused before it is mapped, with the reason, and nothing is left."""

from __future__ import annotations

import fcntl
import os

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine_harness import SMALL
from engine_peer import Peer, attempt, daemon

from engine_shim import HandshakeFailed
from hostflag import region as regions


def memfd(size: int, seals: int) -> int:
    fd = os.memfd_create("dsv41-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if size:
        os.posix_fallocate(fd, 0, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def sparse() -> int:
    """Return a region that was never given its memory."""
    fd = os.memfd_create("dsv41-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 1 << 20)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def unsealed_copy() -> int:
    """Return a region whose every byte is right, but whose size could still change."""
    fd = regions.create(SMALL)
    size = regions.check(fd).bytes
    copy = memfd(size, 0)
    os.sendfile(copy, fd, 0, size)
    os.close(fd)
    return copy


SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
REGIONS: dict[str, tuple[Callable[[], list[int]], str]] = {
    "none": (list, "0 descriptors"),
    "two": (lambda: [regions.create(SMALL), regions.create(SMALL)], "2 descriptors"),
    "a pipe": (lambda: list(os.pipe())[:1], "not a memfd"),
    "empty": (lambda: [memfd(0, SEALS)], "too small"),
    "sparse": (lambda: [sparse()], "sparse"),
    "zeros": (lambda: [memfd(1 << 20, SEALS)], "wrong magic"),
    "unsealed": (lambda: [unsealed_copy()], "not sealed"),
    "another geometry": (lambda: [regions.create(msgspec.structs.replace(SMALL, drafts=4))], "another geometry"),
}


@pytest.mark.parametrize("what", REGIONS)
def test_a_region_that_is_none(short_dir: Path, what: str) -> None:
    make, match = REGIONS[what]

    def script(peer: Peer) -> None:
        peer.asked_for_region()
        extra = os.pipe() if what == "a pipe" else ()
        fds = [extra[0]] if extra else make()
        peer.send_region(*fds)
        for fd in {*fds, *extra}:
            os.close(fd)
        peer.stay()

    with daemon(short_dir, script) as path, pytest.raises(HandshakeFailed, match=match):
        attempt(path)


def test_a_region_that_is_in_use(short_dir: Path) -> None:
    def script(peer: Peer) -> None:
        peer.asked_for_region()
        fd = regions.create(SMALL)
        regions.rebase(fd, 5)
        layout_words = 1 << 16  # the engine words are the region's second part, submitted its first word
        os.pwrite(fd, (9).to_bytes(4, "little"), layout_words)
        peer.send_region(fd)
        os.close(fd)
        peer.stay()

    with daemon(short_dir, script) as path, pytest.raises(HandshakeFailed, match="in use"):
        attempt(path)
