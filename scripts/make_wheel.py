# SPDX-License-Identifier: Apache-2.0
"""Build an sdist, then a wheel from that sdist and from nothing else: ``make_wheel.py DIRECTORY``."""

from __future__ import annotations

import os
import subprocess
import sys

from pathlib import Path
from typing import Final

from setuptools import build_meta


ROOT: Final = Path(__file__).resolve().parent.parent


def build(directory: Path) -> tuple[Path, Path]:
    """Return the paths of sdist and wheel. Needs setuptools and cffi, no network."""
    os.chdir(ROOT)  # setuptools knows no other way
    directory.mkdir(parents=True, exist_ok=True)
    sdist = directory / build_meta.build_sdist(str(directory))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(directory), str(sdist)], check=True)
    (wheel,) = directory.glob(sdist.name.removesuffix(".tar.gz").replace("-", "?") + "-*.whl")
    return sdist, wheel


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    for path in build(Path(sys.argv[1]).resolve()):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
