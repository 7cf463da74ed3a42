# SPDX-License-Identifier: Apache-2.0
"""``dsv41-rehearse``."""

from __future__ import annotations

import sys

from collections.abc import Sequence

from hostflag import starting


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status."""
    return starting.run("dsv41_rehearse.commands", argv)


if __name__ == "__main__":
    sys.exit(main())
