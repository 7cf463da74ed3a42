# SPDX-License-Identifier: Apache-2.0
"""Where a worker's door stays shut: ZMQ handshakes that failed, since keys are wrong or no worker is there."""

from __future__ import annotations

from typing import Any

import structlog


class Barred:
    """``counted``: those of probes; a session's loop counts those of its links."""

    def __init__(self) -> None:
        self.counted = 0
        self._log: Any = structlog.get_logger()

    def probed(self, endpoint: str, reason: str) -> None:
        """Take what a probe has met."""
        self.counted += 1
        self.say(endpoint, reason)

    def say(self, endpoint: str, reason: str) -> None:
        """Write it to the log: once an endpoint, however many sessions and looks meet it."""
        self._log.warning(
            "worker link barred", reason=reason, endpoint=endpoint, rate_limited=True, rate_key=endpoint, rate_burst=1
        )
