# SPDX-License-Identifier: Apache-2.0
"""Why the daemon could not start, or would not take an engine."""

from __future__ import annotations


class StartError(Exception):
    """The daemon cannot serve with these settings; the message says what to do."""


class RefusedError(Exception):
    """An engine is not taken: ``code`` for programs, ``reason`` for people, as in REFUSED."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
