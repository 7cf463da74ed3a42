# SPDX-License-Identifier: Apache-2.0
"""Regions: bounds, seals, and what a check refuses before anything is mapped."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hostflag import geometry as geometries
from hostflag import region
from hostflag._hostflag import ffi, lib
from hostflag.messages import Geometry
from hostflag.verdicts import Verdict


F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE = 1, 2, 4, 8
GEOMETRY = Geometry(slots=4, max_requests=4, state_slots=8, row_bytes=1024, drafts=5, vocab=256, ring_bytes=1 << 20)


@pytest.fixture
def region_fd() -> Iterator[int]:
    fd = region.create(GEOMETRY)
    yield fd
    os.close(fd)


def copy_of(fd: int, size: int | None = None, seals: int = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW) -> int:
    """Return a memfd with the same bytes, another size or other seals."""
    whole = os.fstat(fd).st_size
    copy = os.memfd_create("copy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(copy, whole if size is None else size)
    os.posix_fallocate(copy, 0, whole if size is None else size)
    os.pwrite(copy, os.pread(fd, min(4096, whole if size is None else size), 0), 0)
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, seals)
    return copy


def refusal(fd: int) -> str:
    with pytest.raises(region.RegionFault) as caught:
        region.check(fd)
    return str(caught.value)


def test_a_new_region_is_sealed_allocated_and_says_its_geometry(region_fd: int) -> None:
    header = region.check(region_fd)
    status = os.fstat(region_fd)

    assert header.geometry == GEOMETRY
    assert header.bytes == status.st_size == geometries.region_bytes(GEOMETRY)
    assert status.st_blocks * 512 >= status.st_size, "sparse: a lack of memory would be SIGBUS later"
    assert fcntl.fcntl(region_fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    with pytest.raises(OSError, match="not permitted"):
        os.truncate(region_fd, 4096)


def test_every_slot_starts_decided(region_fd: int) -> None:
    with region.View(region_fd) as view:
        verdicts = [view.verdict(slot) for slot in range(GEOMETRY.slots)]

    assert [verdict for _, verdict in verdicts] == [Verdict.OK] * GEOMETRY.slots
    assert [t % GEOMETRY.slots for t, _ in verdicts] == list(range(GEOMETRY.slots))


@pytest.mark.parametrize("base", [0, 1, 12345, 2**32 - 1000, 2**32 - 1])
def test_rebase_starts_every_counter_there(region_fd: int, base: int) -> None:
    region.rebase(region_fd, base)

    with region.View(region_fd) as view:
        for word in (
            region.Word.SUBMITTED,
            region.Word.GATHERED,
            region.Word.CONSUMED,
            region.Word.RELEASED,
            region.Word.RETIRED,
        ):
            assert view.word(word) == base
        assert view.verdict(base % GEOMETRY.slots) == (base, Verdict.OK)


def test_two_regions_differ_in_their_identity(region_fd: int) -> None:
    other = region.create(GEOMETRY)
    try:
        assert region.check(other).region_id != region.check(region_fd).region_id
    finally:
        os.close(other)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"slots": 6}, "slots"),
        ({"slots": 2}, "slots"),
        ({"slots": 128}, "slots"),
        ({"max_requests": 0}, "max_requests"),
        ({"max_requests": 257, "state_slots": 400}, "max_requests"),
        ({"state_slots": 3}, "state_slots"),
        ({"row_bytes": 0}, "row_bytes"),
        ({"row_bytes": 1001}, "row_bytes"),
        ({"row_bytes": 1 << 21}, "row_bytes"),
        ({"window": 0}, "window"),
        ({"drafts": 0}, "drafts"),
        ({"drafts": 65}, "drafts"),
        ({"vocab": 0}, "vocab"),
        ({"vocab": 2**31}, "vocab"),
        ({"extra_bytes": 1 << 21}, "extra_bytes"),
        ({"ring_bytes": 1000}, "ring_bytes"),
        ({"ring_bytes": 1 << 40}, "ring_bytes"),
        ({"ring_bytes": 65536, "row_bytes": 4096}, "one full decode step"),
    ],
)
def test_a_geometry_out_of_bounds_is_refused_by_name(change: dict[str, int], named: str) -> None:
    bad = msgspec.structs.replace(GEOMETRY, **change)

    reason = geometries.fault(bad)
    assert reason is not None
    assert named in reason
    with pytest.raises(region.RegionFault, match=named):
        region.create(bad)


def test_parts_do_not_overlap_and_are_aligned_for_any_page_size() -> None:
    layout = ffi.new("struct hf_layout *")
    assert lib.hf_layout_of(geometries.to_c(GEOMETRY), layout) == 0
    parts = [
        layout.engine_words,
        layout.shared_words,
        layout.daemon_words,
        layout.slots,
        layout.replies,
        layout.stats,
        layout.rows,
        layout.bytes,
    ]

    assert parts == sorted(set(parts))
    assert all(part % lib.HF_PART_ALIGN == 0 for part in parts)
    assert layout.bytes - layout.rows == GEOMETRY.ring_bytes


def test_a_region_that_is_not_whole_is_refused_with_the_reason(region_fd: int) -> None:
    whole = os.fstat(region_fd).st_size
    cases = [
        (copy_of(region_fd, seals=0), "not sealed"),
        (copy_of(region_fd, seals=F_SEAL_SHRINK | F_SEAL_GROW), "not sealed"),
        (copy_of(region_fd, seals=F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), "against writing"),
        (copy_of(region_fd, size=100), "too small"),
        (copy_of(region_fd, size=whole - 65536), "not as large"),
        (copy_of(region_fd, size=whole + 65536), "not as large"),
    ]
    for fd, reason in cases:
        assert reason in refusal(fd)
        os.close(fd)


@pytest.mark.parametrize("hole", [0, 65536, -65536], ids=["behind the header", "in the middle", "at the end"])
def test_a_region_with_holes_is_refused(region_fd: int, hole: int) -> None:
    """A seal keeps the size, not the memory: whoever touches a hole where memory is short gets SIGBUS."""
    whole = os.fstat(region_fd).st_size
    copy = os.memfd_create("copy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(copy, whole)
    os.pwrite(copy, os.pread(region_fd, whole if hole else 4096, 0), 0)
    if hole:
        where = ["--offset", str(hole % whole), "--length", "4096"]
        subprocess.run(["fallocate", "--punch-hole", *where, f"/proc/self/fd/{copy}"], pass_fds=[copy], check=True)
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW)
    assert "sparse" in refusal(copy)
    os.close(copy)


def test_what_is_no_memfd_is_refused() -> None:
    with Path("/dev/null").open("rb") as null:
        assert "not a memfd" in refusal(null.fileno())
    assert "not a memfd" in refusal(-1)


@pytest.mark.parametrize("offset", range(0, int(ffi.sizeof("struct hf_header")) - 16, 4))
def test_a_changed_header_is_refused_or_still_describes_this_file(region_fd: int, offset: int) -> None:
    """All but region_id, the last 16 bytes. A bound like vocab moves no offset: there another value is another geometry."""
    before = struct.unpack("<I", os.pread(region_fd, 4, offset))[0]
    os.pwrite(region_fd, struct.pack("<I", (before + 1) & 0xFFFFFFFF), offset)

    try:
        header = region.check(region_fd)
    except region.RegionFault:
        return
    assert header.geometry != GEOMETRY
    assert geometries.region_bytes(header.geometry) == os.fstat(region_fd).st_size


@pytest.mark.parametrize("field", ["magic", "version", "bytes", "layout_hash"])
def test_a_header_of_another_build_is_refused(region_fd: int, field: str) -> None:
    os.pwrite(region_fd, b"\xee\xee", int(ffi.offsetof("struct hf_header", field)))

    assert refusal(region_fd)
