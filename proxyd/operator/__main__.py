# SPDX-License-Identifier: Apache-2.0
"""``dsv41-proxyctl``."""

from __future__ import annotations

import sys

from hostflag import starting


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Do one command. Returns the exit status."""
    return starting.run(["proxyd.lean", "proxyd.operator.ctl"], argv)


if __name__ == "__main__":
    sys.exit(main())
