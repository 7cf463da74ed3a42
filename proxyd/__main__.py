# SPDX-License-Identifier: Apache-2.0
"""``dsv41-proxyd``."""

from __future__ import annotations

import signal
import sys

from hostflag import starting


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    # It would end the process until there is a handler (proxyd.service.signals): it waits until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    return starting.run(["proxyd.lean", "proxyd.program"], argv)


if __name__ == "__main__":
    sys.exit(main())
