# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41_rehearse.child PARENT MODULE ...``: becomes ``python -m MODULE ...``, which ends when its parent does."""

from __future__ import annotations

import os
import signal
import sys

from typing import Final

from dsv41_rehearse._standin import lib


PARENT_GONE: Final = 117


def main() -> None:
    """Ask for a signal at the parent's end, then become the program. A fork's child could not ask where threads are running."""
    parent, module, *arguments = sys.argv[1:]
    lib.st_die_with_parent(signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(PARENT_GONE)
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 no shell is wanted


if __name__ == "__main__":
    main()
