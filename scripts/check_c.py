# SPDX-License-Identifier: Apache-2.0
"""
Compile every C file of native/ by itself, warnings as errors, with each compiler: ``check_c.py [COMPILER ...]``.

The flags are those of native/build_ffi.py. A compiler that is not installed is passed over, but fails where CI is set.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys

from collections.abc import Sequence
from pathlib import Path
from typing import Final


NATIVE: Final = Path(__file__).resolve().parent.parent / "native"
# Each with the Debian packages that bring it. aarch64: proves that nothing is x86 only.
COMPILERS: Final = {
    "gcc": "gcc",
    "clang": "clang",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
}


def sources(native: Path = NATIVE) -> list[Path]:
    """Return the C files that people wrote; generated ones begin with an underscore."""
    return sorted(path for path in native.glob("*.c") if not path.name.startswith("_"))


def warnings_of(compiler: str, source: Path) -> str:
    """Compile one file, keep nothing; return what the compiler said, empty where it was content."""
    flags: list[str] = runpy.run_path(str(NATIVE / "build_ffi.py"))["COMPILE_ARGS"]
    command = [compiler, *flags, "-Werror", f"-I{NATIVE}", "-c", str(source), "-o", os.devnull]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stderr if ended.returncode else ""


def check(compiler: str) -> bool:
    """Check every file with one compiler and say what came of it; False where something is wrong."""
    if shutil.which(compiler) is None:
        print(f"{compiler}: not installed, not checked (apt-get install {COMPILERS.get(compiler, compiler)})")
        return "CI" not in os.environ
    complaints = {path.name: text for path in sources() if (text := warnings_of(compiler, path))}
    print(f"{compiler}: {len(sources())} files, {len(complaints)} with warnings")
    print("\n".join(complaints.values()), end="", file=sys.stderr)
    return not complaints


def main(argv: Sequence[str]) -> int:
    content = [check(compiler) for compiler in argv or COMPILERS]
    return 0 if all(content) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
