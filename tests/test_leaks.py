# SPDX-License-Identifier: Apache-2.0
"""The check for what is left behind sees each kind of it: a check that cannot fail would hide everything."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time

from collections.abc import Callable
from pathlib import Path

import leaks
import pytest


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.1)


def orphan() -> int:
    """Start a process whose parent ends at once, and return its pid."""
    code = "import subprocess as s; print(s.Popen(['sleep', '60'], stdout=s.DEVNULL).pid)"
    return int(subprocess.run([sys.executable, "-Ic", code], stdout=subprocess.PIPE, check=True).stdout)


def test_an_orphan_is_seen_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leaks.held()
    pid = orphan()

    assert leaks.left_since(before) == [f"process {pid} sleep 60"]
    monkeypatch.setattr(leaks, "GRACE_S", 10.0)
    assert leaks.left_since(before) == []


def test_a_zombie_is_seen() -> None:
    before = leaks.held()
    with subprocess.Popen(["true"]) as child:
        while Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8").split()[2] != "Z":
            time.sleep(0.001)
        left = leaks.left_since(before)

    assert any(line.startswith(f"zombie {child.pid} ") for line in left)


def open_fd() -> Callable[[], object]:
    fd = os.open("/dev/zero", os.O_RDONLY)
    return lambda: os.close(fd)


def mapped_memfd() -> Callable[[], object]:
    fd = os.memfd_create("leak", os.MFD_CLOEXEC)
    os.ftruncate(fd, 4096)
    view = mmap.mmap(fd, 4096)
    os.close(fd)
    return view.close


def temporary_file() -> Callable[[], object]:
    fd, name = tempfile.mkstemp()
    os.close(fd)
    return Path(name).unlink


def thread() -> Callable[[], object]:
    end = threading.Event()
    running = threading.Thread(target=end.wait)
    running.start()

    def undo() -> None:
        end.set()
        running.join()

    return undo


@pytest.mark.parametrize(
    ("leave", "kind"),
    [(open_fd, "fd "), (mapped_memfd, "map "), (temporary_file, "file "), (thread, "thread ")],
)
def test_each_kind_is_seen_until_it_is_gone(leave: Callable[[], Callable[[], object]], kind: str) -> None:
    before = leaks.held()
    undo = leave()
    try:
        assert any(line.startswith(kind) for line in leaks.left_since(before))
    finally:
        undo()
    assert leaks.left_since(before) == []
