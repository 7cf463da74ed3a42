# SPDX-License-Identifier: Apache-2.0
"""What ruff and mypy cannot say about the tree: licences, sizes, who may import what, what is written only once."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hostflag._hostflag import lib
from hostflag.version import VERSION


ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("hostflag", "proxyd", "engine_shim", "refworker", "dsv41_rehearse")
MAX_LINES: Final = 300
LONGER: Final = {"native/hostflag.h": "one definition of the layout, in one file"}


def files(*patterns: str) -> list[Path]:
    """Return the files that people wrote, here and in the folders of the project."""
    folders = [ROOT / name for name in (*PACKAGES, "native", "scripts", "fuzz", "tests", "bench")]
    found = [path for pattern in patterns for path in ROOT.glob(pattern)]
    found += [path for folder in folders for pattern in patterns for path in folder.rglob(pattern)]
    return sorted(path for path in found if not (path.name.startswith("_") and path.suffix == ".c"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level names that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def constants(path: Path) -> list[object]:
    """Return every constant of a module, docstrings too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]


SOURCES: Final = files("*.py", "*.pyi", "*.c", "*.h")
SCRIPTS: Final = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "scripts" / "setup"]


@pytest.mark.parametrize("path", [*SOURCES, *SCRIPTS], ids=relative)
def test_a_file_says_its_licence_first(path: Path) -> None:
    head = path.read_text(encoding="utf-8").splitlines()[:2]
    assert any("SPDX-License-Identifier: Apache-2.0" in line for line in head)


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_file_is_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES or relative(path) in LONGER


@pytest.mark.parametrize(
    ("package", "banned"),
    [
        ("hostflag", {"numpy", "torch"}),
        ("proxyd", {"numpy", "torch", "cupy", "cuda", "engine_shim", "refworker", "dsv41_rehearse"}),
        ("engine_shim", {"torch", "cupy", "proxyd", "refworker", "dsv41_rehearse"}),
        ("refworker", {"torch", "proxyd", "engine_shim", "dsv41_rehearse"}),
        ("dsv41_rehearse", {"torch"}),
    ],
)
def test_nobody_imports_what_its_process_must_not_hold(package: str, banned: set[str]) -> None:
    for path in (ROOT / package).rglob("*.py"):
        found = banned.intersection(imports(ast.parse(path.read_text(encoding="utf-8"))))
        assert not found, f"{relative(path)} imports {found}"


@pytest.mark.parametrize("package", ["hostflag", "proxyd", "engine_shim"])
def test_a_whole_package_imports_without_numpy_or_torch(package: str) -> None:
    """Dependencies too: one that pulls numpy in would put it into the daemon's memory."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / package).rglob("*.py"))
    modules = sorted(".".join(path.parts) for path in paths)
    code = f"import sys, {', '.join(modules)}; print(sorted({{'numpy', 'torch'}} & sys.modules.keys()))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("text", ["/run/dsv41-proxyd/engine.sock", "tcp://127.0.0.1:5741", "127.0.0.1:9741", VERSION])
def test_a_default_is_written_once(text: str) -> None:
    places = [
        relative(path) for package in PACKAGES for path in (ROOT / package).rglob("*.py") if text in constants(path)
    ]
    assert len(places) <= 1, f"{text!r} is written in {places}"


def test_numbers_of_the_protocols_come_from_the_headers() -> None:
    magics = {lib.HW_MAGIC, int.from_bytes(b"DV41HF01", "little")}
    ours = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert [relative(path) for path in ours if magics.intersection(constants(path))] == []


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=relative)
def test_links_in_documents_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert "://" in target or (path.parent / target).exists(), f"{relative(path)} links to {target}"


@pytest.mark.parametrize("path", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=relative)
def test_files_that_documents_name_exist(path: Path) -> None:
    """By path, or by name alone where it is one of native/."""
    for name in re.findall(r"`([\w/]+\.(?:c|h|py))`", path.read_text(encoding="utf-8")):
        assert (ROOT / name).exists() or (ROOT / "native" / name).exists(), f"{relative(path)} names {name}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
