# SPDX-License-Identifier: Apache-2.0
"""The build of the C modules: on other compilers, for Arm, and what it says where something is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest


ROOT: Final = Path(__file__).resolve().parent.parent
CHECK_C: Final = ROOT / "scripts" / "check_c.py"


def run(*command: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program without CI and with some of the environment changed."""
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Give a copy of what the build reads."""
    for name in ("native", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "_*.c"))
    for name in ("hostflag", "engine_shim", "proxyd", "dsv41_rehearse"):
        (tmp_path / name).mkdir()
    return tmp_path


def keep_only(tree: Path, name: str, text: str) -> None:
    """Make this the only C file."""
    for path in (tree / "native").glob("*.c"):
        path.unlink()
    (tree / "native" / name).write_text(text, encoding="utf-8")


def needs(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")


@pytest.mark.parametrize("compiler", ["gcc", "clang", "aarch64-linux-gnu-gcc"])
def test_no_warnings(compiler: str) -> None:
    needs(compiler)
    ended = run(sys.executable, CHECK_C, compiler)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("compiler", ["gcc", "clang", "aarch64-linux-gnu-gcc"])
def test_a_warning_fails_the_check(compiler: str, tree: Path) -> None:
    needs(compiler)
    keep_only(tree, "region.c", "static int unused;\nint hf_x(int n);\nint hf_x(int n) { return 0; }\n")
    ended = run(sys.executable, tree / "scripts" / "check_c.py", compiler)
    assert ended.returncode == 1
    assert "region.c" in ended.stderr


def test_x86_only_code_fails_the_check_for_arm(tree: Path) -> None:
    needs("aarch64-linux-gnu-gcc")
    keep_only(tree, "region.c", "void hf_x(void);\nvoid hf_x(void) { __builtin_ia32_pause(); }\n")
    check = tree / "scripts" / "check_c.py"
    assert run(sys.executable, check, "aarch64-linux-gnu-gcc").returncode == 1


def test_a_compiler_that_is_not_there_is_passed_over_but_not_in_ci(tree: Path) -> None:
    check = tree / "scripts" / "check_c.py"
    ended = run(sys.executable, check, "no-such-cc")
    assert ended.returncode == 0
    assert "not installed" in ended.stdout
    assert run(sys.executable, check, "no-such-cc", CI="true").returncode == 1


def build(tree: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, tree / "native" / "build_ffi.py", "--inplace", cwd=tree, **environment)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_all_modules_build_and_load(compiler: str, tree: Path) -> None:
    needs(compiler)
    ended = build(tree, {"CC": compiler, "LDSHARED": f"{compiler} -shared"})
    assert ended.returncode == 0, ended.stderr
    built = sorted(path.relative_to(tree) for path in tree.glob("*/*.abi3.so"))
    assert [path.parts[0] for path in built] == ["dsv41_rehearse", "engine_shim", "hostflag", "proxyd"]
    for path in built:
        code = (
            f"import importlib.util as u; s = u.spec_from_file_location('{path.name.partition('.')[0]}', {str(path)!r})"
        )
        loaded = run(sys.executable, "-Ic", f"{code}; u.module_from_spec(s).lib", cwd=tree)
        assert loaded.returncode == 0, loaded.stderr


def test_only_the_module_itself_is_exported() -> None:
    """Two modules of one process hold the same C functions: exported, one would answer for both."""
    for path in ROOT.glob("*/*.abi3.so"):
        names = run("nm", "-D", "--defined-only", path).stdout.split()[2::3]
        assert [name for name in names if not name.startswith(("PyInit_", "_cffi_pypyinit_"))] == [], path


def test_no_compiler_names_the_package(tree: Path) -> None:
    ended = build(tree, {"CC": "no-such-cc", "PATH": "/nonexistent"})
    assert ended.returncode == 1
    assert "apt-get install gcc" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_c_headers_names_the_package(tree: Path) -> None:
    compiler = tree / "bare-cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    ended = build(tree, {"CC": str(compiler)})
    assert ended.returncode == 1
    assert "apt-get install libc6-dev" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_python_header_names_the_package(tree: Path) -> None:
    code = (
        "import runpy, sys, sysconfig; paths = sysconfig.get_paths;"
        "sysconfig.get_paths = lambda *asked: paths(*asked) | {'include': '/nonexistent'};"
        "sys.argv = ['build_ffi.py', '--inplace'];"
        f"runpy.run_path({str(tree / 'native' / 'build_ffi.py')!r}, run_name='__main__')"
    )
    ended = run(sys.executable, "-c", code, cwd=tree)
    assert ended.returncode == 1
    assert "-dev" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_no_cffi_says_how_to_get_it(tree: Path) -> None:
    ended = run(sys.executable, "-I", "-S", tree / "native" / "build_ffi.py", "--inplace", cwd=tree)
    assert ended.returncode == 1
    assert "pip install cffi" in ended.stderr
    assert "Traceback" not in ended.stderr
