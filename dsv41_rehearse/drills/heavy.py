# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41_rehearse.drills.heavy MIB DIRECTORY ...``: a daemon with so much memory more, which leaves its core in DIRECTORY."""

from __future__ import annotations

import mmap
import os
import resource
import sys

from typing import Final

from proxyd.__main__ import main as daemon


MIB: Final = 1 << 20
_memory: Final[list[mmap.mmap]] = []


def main() -> int:
    """Take the memory, allow a core, become the daemon."""
    mib, directory, *arguments = sys.argv[1:]
    heavy = mmap.mmap(-1, int(mib) * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(heavy), mmap.PAGESIZE):
        heavy[at] = 1
    _memory.append(heavy)
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.chdir(directory)
    return daemon(arguments)


if __name__ == "__main__":
    sys.exit(main())
