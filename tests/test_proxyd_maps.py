# SPDX-License-Identifier: Apache-2.0
"""
The running daemon maps no CUDA, no torch, no numpy, and is small.

All of /proc/PID/maps is read, with sessions up and after a scrape: what is imported late counts too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

from pathlib import Path
from typing import Final

import pytest

from proxyd_engine import Engine
from proxyd_harness import PATIENCE_S, Daemon

from proxyd.views.metrics import resident_bytes


FORBIDDEN: Final = re.compile(r"cuda|cudart|nvidia|torch|numpy|openblas", re.IGNORECASE)
RSS_LIMIT: Final = 40 << 20  # RssAnon + RssFile; the regions are RssShmem


def forbidden_maps(pid: int) -> list[str]:
    """Return the files that the process maps and must not, as the kernel names them."""
    lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    files = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    assert any("python" in file or "proxyd" in file for file in files), "these are no maps of a Python program"
    return sorted(file for file in files if FORBIDDEN.search(Path(file).name) or FORBIDDEN.search(file))


def private_bytes(pid: int) -> int:
    sizes = resident_bytes(Path(f"/proc/{pid}/status"))
    return sizes["anon"] + sizes["file"]


def test_the_running_daemon_maps_nothing_forbidden_and_is_small(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, Engine(daemon.path) as one, Engine(daemon.path) as two:
        one.ready("one")
        two.ready("two")
        one.round(1)
        daemon.scrape()
        assert forbidden_maps(daemon.pid) == []
        assert private_bytes(daemon.pid) <= RSS_LIMIT


@pytest.mark.parametrize(
    "name",
    [
        "libcuda.so.1",
        "libcudart.so.13",
        "libtorch_cpu.so",
        "numpy/_core/_multiarray_umath.so",
        "numpy.libs/libscipy_openblas64_.so",
    ],
)
def test_the_matcher_finds_what_is_planted(short_dir: Path, name: str) -> None:
    planted = short_dir / name
    planted.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path("/proc/self/exe").resolve(), planted)
    program = (
        "import mmap, sys; file = open(sys.argv[1], 'rb'); kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ);"
        "print('mapped', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(planted)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"mapped\n"
        assert forbidden_maps(process.pid) == [str(planted)]
        process.communicate(timeout=PATIENCE_S)


def test_the_matcher_finds_numpy_where_it_is_imported() -> None:
    program = "import numpy, sys; print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        assert any("numpy" in file for file in forbidden_maps(process.pid))
        process.communicate(timeout=PATIENCE_S)
