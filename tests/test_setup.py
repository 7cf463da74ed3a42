# SPDX-License-Identifier: Apache-2.0
"""What scripts/setup says and does on a machine that lacks something. Python, id and apt-get are stand-ins here."""

from __future__ import annotations

import shutil
import subprocess

from pathlib import Path
from typing import Final

import pytest


ROOT: Final = Path(__file__).resolve().parent.parent
# What the stand-in Python answers to the probe: version, interpreter, compiler, has pip for a venv, has Python.h.
BARE: Final = "3.12 /usr/bin/python3.12 no-such-cc no no"


class Machine:
    """A directory of stand-ins that is the whole PATH but for what the script itself calls."""

    def __init__(self, directory: Path) -> None:
        self.tree = directory / "tree"
        self.bin = directory / "bin"
        self.asked = directory / "asked"
        self.bin.mkdir()
        (self.tree / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "setup", self.tree / "scripts")
        for tool in ("bash", "dirname", "env"):
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        self.tool("apt-get", f'echo "$@" >> {self.asked}')
        self.tool("id", "echo 1000")

    def tool(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the script; nothing but the stand-ins can be found on PATH."""
        return subprocess.run(
            [str(self.tree / "scripts" / "setup")],
            env={"PATH": str(self.bin)} | environment,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_root_it_prints_the_apt_line_and_fails(machine: Machine) -> None:
    machine.tool("python3", f"echo {BARE}")
    ended = machine.setup()
    assert ended.returncode == 1
    assert "sudo apt-get install -y python3.12-venv python3.12-dev gcc libc6-dev\n" in ended.stderr
    assert not machine.asked.exists()


def test_without_any_python_it_asks_for_all(machine: Machine) -> None:
    ended = machine.setup()
    assert ended.returncode == 1
    assert "sudo apt-get install -y python3 python3-venv python3-dev gcc libc6-dev\n" in ended.stderr


def test_as_root_it_installs_and_looks_again(machine: Machine) -> None:
    machine.tool("python3", f"echo {BARE}")
    machine.tool("id", "echo 0")
    ended = machine.setup()
    assert machine.asked.read_text(encoding="utf-8").splitlines() == [
        "update -q",
        "install -y -q --no-install-recommends python3.12-venv python3.12-dev gcc libc6-dev",
    ]
    assert ended.returncode == 1, "the stand-in installed nothing"
    assert "still missing" in ended.stderr


def test_the_newest_python_that_has_all_is_taken(machine: Machine) -> None:
    machine.tool("cc", "while read -r _; do :; done")
    machine.tool("python3.14", "echo 3.14 /usr/bin/python3.14 cc no yes")
    machine.tool("python3.13", "exit 1")
    machine.tool("python3.12", "[ $1 = -c ] && echo 3.12 /nonexistent/python3.12 cc yes yes")
    machine.tool("python3.11", "echo 3.11 /usr/bin/python3.11 cc yes yes")
    assert "making .venv with /nonexistent/python3.12 (Python 3.12)" in machine.setup().stdout


def test_a_named_python_that_will_not_do_is_refused(machine: Machine) -> None:
    machine.tool("python3", f"echo {BARE}")
    machine.tool("old", "exit 1")
    ended = machine.setup(PYTHON="old")
    assert ended.returncode == 1
    assert "PYTHON=old" in ended.stderr


def test_a_python_of_no_debian_package_is_not_asked_of_apt(machine: Machine) -> None:
    machine.tool("python3", "echo 3.12 /opt/python/bin/python3.12 cc yes no")
    ended = machine.setup()
    assert ended.returncode == 1
    assert "/opt/python/bin/python3.12 lacks" in ended.stderr
    assert not machine.asked.exists()
