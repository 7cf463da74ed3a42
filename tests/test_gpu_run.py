# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_run refuses what it does not know before it does anything, and loses no module that was brought along."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time

from pathlib import Path
from typing import Final

import pytest

from engine_hand import until

from dsv41_rehearse.proc import alive


ROOT: Final = Path(__file__).resolve().parent.parent
PATIENCE_S: Final = 30.0
# Instead of Python: a build does what it is told to, the rest succeeds.
PYTHON: Final = """#!/bin/bash
[[ $1 == native/build_ffi.py ]] || exit 0
[[ -e hostflag/_hostflag.abi3.so ]] && exit 9
echo building
echo $$ >build.pid
"""


class Tree:
    """A tree with one module that was brought along, and a build that does as a script says."""

    def __init__(self, directory: Path, build: str) -> None:
        self.path = directory / "tree"
        self.out = directory / "out"
        self.module = self.path / "hostflag" / "_hostflag.abi3.so"
        for folder in ("scripts", "native", "hostflag"):
            (self.path / folder).mkdir(parents=True)
        self.module.write_text("brought", encoding="utf-8")
        shutil.copy(ROOT / "scripts" / "gpu_run", self.path / "scripts")
        self.python = directory / "python"
        self.python.write_text(PYTHON + build, encoding="utf-8")
        self.python.chmod(0o755)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.path / "scripts" / "gpu_run"), *arguments],
            env={**os.environ, "PYTHON": str(self.python), "OUT": str(self.out), "SITE": str(self.out)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def building(self) -> int:
        """Wait for the build; return its process id."""
        pid = self.path / "build.pid"
        until = time.monotonic() + PATIENCE_S
        while not (pid.exists() and pid.read_text(encoding="utf-8").strip()):
            assert time.monotonic() < until, "nothing is built"
            time.sleep(0.01)
        return int(pid.read_text(encoding="utf-8"))

    def as_brought(self) -> bool:
        """Whether the module is there as it was, and nothing beside it."""
        return [*self.module.parent.iterdir()] == [self.module] and self.module.read_text(encoding="utf-8") == "brought"


@pytest.mark.parametrize(
    ("arguments", "status"), [("--help", 0), ("-h", 0), ("tets", 2), ("qualify tets", 2), ("qualify --fast", 2)]
)
def test_what_it_does_not_know_is_refused_before_anything_is_done(tmp_path: Path, arguments: str, status: int) -> None:
    tree = Tree(tmp_path, "exit 0")
    run = tree.start(*arguments.split())
    said, errors = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == status
    assert "usage: scripts/gpu_run [STAGE ...]" in (errors if status else said)
    assert not (tree.path / "build.pid").exists()
    assert not tree.out.exists()
    assert tree.as_brought()


def test_a_module_that_was_built_takes_the_place_of_the_one_brought(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "echo built >hostflag/_hostflag.abi3.so")
    run = tree.start("deadlocks")
    said, errors = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, errors
    assert "== failed stages: none" in said
    assert "building" in (tree.out / "run.log").read_text(encoding="utf-8")
    assert tree.module.read_text(encoding="utf-8") == "built\n"
    assert [*tree.module.parent.iterdir()] == [tree.module]


def test_a_build_that_fails_leaves_the_one_brought(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "exit 1")
    run = tree.start("deadlocks")
    said, _ = run.communicate(timeout=PATIENCE_S)
    assert "is the one that was brought along" in said
    assert tree.as_brought()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_in_the_middle_of_the_build(tmp_path: Path, number: signal.Signals) -> None:
    tree = Tree(tmp_path, "echo half >hostflag/_hostflag.abi3.so; exec sleep 1000")
    run = tree.start()
    build = tree.building()
    run.send_signal(number)
    run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 128 + number
    assert tree.as_brought()
    until(lambda: not alive(build), "the build is ended, too")


def test_a_reader_that_goes_away_in_the_middle_of_the_build(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "for i in {1..50}; do echo building || exit 1; sleep 0.1; done; exit 1")
    run = tree.start()
    tree.building()
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.close()
    run.stderr.close()
    assert run.wait(PATIENCE_S) != 0
    assert tree.as_brought()
