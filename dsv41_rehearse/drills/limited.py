# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41_rehearse.drills.limited MODULE ...``: becomes MODULE without the right to lock any memory."""

from __future__ import annotations

import ctypes
import os
import resource
import sys

from typing import Final


_PR_CAPBSET_DROP: Final = 24
_CAP_IPC_LOCK: Final = 14


def main() -> None:
    """Give the right up for good, then become the program: root's own would come back with it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0 and libc.prctl(_PR_CAPBSET_DROP, _CAP_IPC_LOCK, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "CAP_IPC_LOCK cannot be dropped")
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])  # noqa: S606 no shell is wanted


if __name__ == "__main__":
    main()
