# SPDX-License-Identifier: Apache-2.0
"""
Builds of tests/stress: the product's C files, each atomic access behind a point, with the harness around them.

A build is made in a directory of its own from what native/ holds; a seeded fault is a change to the text of a copy, so the shipped
sources hold no hooks. Only the files that a fault changes are compiled again.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import runpy
import shutil
import subprocess

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final


ROOT: Final = Path(__file__).resolve().parent.parent
NATIVE: Final = ROOT / "native"
HARNESS: Final = ROOT / "tests" / "stress"
FLAGS: Final = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-Wall", "-Wextra")
WRAPPED: Final = ("hf_region_map", "hf_region_unmap", "hf_decide", "hf_release", "hfd_loop_main")
# What needs a library, a driver or a peer that is not there.
LEFT_OUT: Final = re.compile(r"zmq|cuda|heap")

# TSan does not model fences (-Wno-tsan). Ours order only who sleeps against who wakes: tests/litmus is for those.
SANITIZERS: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (),
    "thread": ("-fsanitize=thread", "-Wno-tsan"),
    "address,undefined": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
}


@dataclass(frozen=True)
class Change:
    """In ``file`` of native/, ``old`` (which stands there exactly once) becomes ``new``."""

    file: str
    old: str
    new: str

    def applied_to(self, text: str) -> str:
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.file}: {self.old!r} stands there {text.count(self.old)} times: adapt the seeded fault"
            )
        return text.replace(self.old, self.new)


def product_sources() -> list[str]:
    """Return the files of native/ that engine and daemon are made of, as the build lists them."""
    build: dict[str, Any] = runpy.run_path(str(NATIVE / "build_ffi.py"))
    names = dict.fromkeys((*build["ENGINE"].sources, *build["DAEMON"].sources, "shared.c"))
    return [name for name in names if not LEFT_OUT.match(name)]


def changed(native: Path, changes: tuple[Change, ...]) -> dict[str, str]:
    """Return the text of each file that changes, by its name."""
    texts: dict[str, str] = {}
    for change in changes:
        text = texts.get(change.file) or (native / change.file).read_text(encoding="utf-8")
        texts[change.file] = change.applied_to(text)
    return texts


@dataclass
class Builder:
    """Compiles with one compiler and one sanitizer into one directory."""

    directory: Path
    sanitizer: str = "none"
    compiler: str = field(default_factory=lambda: os.environ.get("CC", "cc"))
    extra: tuple[str, ...] = ()

    def plain(self, name: str, *changes: Change) -> Path:
        """Build one of the C programs of tests/ with the product's sources as they are, no points; return its path."""
        folder = self.directory / "plain"
        objects = {source: folder / f"{Path(source).stem}.o" for source in product_sources()}
        if not folder.exists():
            folder.mkdir()
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(lambda job: self._make(NATIVE / job[0], job[1]), objects.items()))
        for file, text in changed(NATIVE, changes).items():
            source = self.directory / f"changed-{file}"
            source.write_text(text, encoding="utf-8")
            objects[file] = source.with_suffix(".o")
            self._make(source, objects[file])
        target = self.directory / name
        self._run_all(f"-I{NATIVE}", str(ROOT / "tests" / f"{name}.c"), *map(str, objects.values()), "-o", str(target))
        return target

    def works(self) -> str:
        """Return why nothing can be built and run here; empty where it can."""
        if shutil.which(self.compiler) is None:
            return f"{self.compiler} is not installed"
        source = self.directory / "empty.c"
        source.write_text("int main(void) { return 0; }\n")
        made = self._run(str(source), "-o", str(self.directory / "empty"))
        return "" if made.returncode == 0 else f"no {self.sanitizer} sanitizer: {made.stderr.strip()[-200:]}"

    def program(self) -> Path:
        """Build the stress program; return its path."""
        sources = self.directory / "native"
        shutil.copytree(NATIVE, sources, ignore=lambda _, names: [n for n in names if not n.endswith((".c", ".h"))])
        jobs = [(sources / name, self._object(name)) for name in product_sources()]
        jobs += [(path, self._object(path.name, "harness-")) for path in sorted(HARNESS.glob("*.c"))]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: self._compile(*job), jobs))
        return self._link("stress", [target for _, target in jobs])

    def faulty(self, name: str, changes: tuple[Change, ...]) -> Path:
        """Build it once more, with a seeded fault, after ``program``; return its path."""
        objects = {path.name: path for path in self.directory.glob("*.o")}
        for file, text in changed(self.directory / "native", changes).items():
            folder = self.directory / name
            folder.mkdir(exist_ok=True)
            (folder / file).write_text(text, encoding="utf-8")
            target = folder / f"{Path(file).stem}.o"
            self._compile(folder / file, target)
            objects[target.name] = target
        return self._link(name + ".run", list(objects.values()))

    def _object(self, name: str, prefix: str = "") -> Path:
        return self.directory / f"{prefix}{Path(name).stem}.o"

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self.compiler, *FLAGS, *SANITIZERS[self.sanitizer], *self.extra, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _make(self, source: Path, target: Path) -> None:
        self._run_all(f"-I{NATIVE}", "-c", str(source), "-o", str(target))

    def _run_all(self, *arguments: str) -> None:
        made = self._run(*arguments)
        if made.returncode:
            raise RuntimeError(f"{' '.join(arguments)}:\n{made.stderr}")

    def _compile(self, source: Path, target: Path) -> None:
        flags = [f"-I{HARNESS}"] if source.parent == HARNESS else ["-include", str(HARNESS / "points.h")]
        self._run_all(f"-I{self.directory / 'native'}", *flags, "-c", str(source), "-o", str(target))

    def _link(self, name: str, objects: list[Path]) -> Path:
        wraps = ",".join(f"--wrap={symbol}" for symbol in WRAPPED)
        target = self.directory / name
        self._run_all(*map(str, objects), f"-Wl,{wraps}", "-o", str(target))
        return target
