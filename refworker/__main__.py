# SPDX-License-Identifier: Apache-2.0
"""``dsv41-refworker``."""

from __future__ import annotations

import sys

from hostflag import starting


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    return starting.run(["refworker.program"], argv)


if __name__ == "__main__":
    sys.exit(main())
