# SPDX-License-Identifier: Apache-2.0
"""A wheel built from the sdist, and from nothing else, holds all that is needed and works outside the tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

from pathlib import Path
from typing import Final, NamedTuple

import pytest

from hostflag.version import VERSION


ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("hostflag", "proxyd", "engine_shim", "refworker", "dsv41_rehearse")
MODULES: Final = ("hostflag._hostflag", "proxyd._daemon", "engine_shim._engine", "dsv41_rehearse._standin")
COMMANDS: Final = ("dsv41-proxyd", "dsv41-proxyctl", "dsv41-refworker", "dsv41-rehearse")
NOT_SOURCE: Final = (".git", ".*_cache", ".venv", "*.so", "__pycache__", "build", "dist", "*.egg-info", ".hypothesis")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Built(NamedTuple):
    """What make_wheel.py made, and the names of what is in it."""

    sdist: Path
    wheel: Path

    def sdist_names(self) -> set[str]:
        with tarfile.open(self.sdist) as archive:
            return {name.partition("/")[2] for name in archive.getnames()}

    def wheel_names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build both from a copy of the tree, which no build may write to."""
    tree = tmp_path_factory.mktemp("tree") / "source"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, str(tree / "scripts" / "make_wheel.py"), str(dist)]
    ended = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return Built(*(Path(line) for line in ended.stdout.splitlines()[-2:]))


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a venv of its own that sees our dependencies, but not our tree; return its bin folder."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (packages,) = venv.glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    options = ["-q", "--no-index", "--no-deps", "--force-reinstall"]
    subprocess.run([*pip, "install", *options, str(built.wheel)], check=True)
    return venv / "bin"


def test_one_wheel_for_every_python_from_3_10_on(built: Built) -> None:
    assert built.wheel.name.startswith(f"dsv41_proxyd-{VERSION}-cp310-abi3-linux_")


def test_the_wheel_holds_modules_types_texts_licence_and_nothing_else(built: Built) -> None:
    names = built.wheel_names()
    expected = {f"{module.replace('.', '/')}.abi3.so" for module in MODULES}
    expected |= {f"{package}/py.typed" for package in PACKAGES}
    expected |= {str(path.relative_to(ROOT)) for path in ROOT.glob("dsv41_rehearse/data/*")}
    assert expected <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert not [name for name in names if name.endswith((".c", ".h"))]


def test_the_sdist_holds_the_sources_and_nothing_built(built: Built) -> None:
    names = built.sdist_names()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout: what belongs to the sources is not known")
    left_out = {name for name in tracked.stdout.splitlines() if not name.startswith(".")} - names
    assert left_out == set()
    assert not [
        name for name in names if name.endswith((".so", ".o", ".pyc")) or ("/_" in name and name.endswith(".c"))
    ]


def test_every_module_imports_outside_the_tree(installed: Path, tmp_path: Path) -> None:
    code = f"import importlib, json; print(json.dumps([importlib.import_module(m).__file__ for m in {MODULES}]))"
    ended = subprocess.run(
        [installed / "python", "-Ic", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert all(Path(file).is_relative_to(installed.parent) for file in json.loads(ended.stdout))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs_outside_the_tree(command: str, installed: Path, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    ended = subprocess.run(
        [installed / command, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [command, VERSION]
