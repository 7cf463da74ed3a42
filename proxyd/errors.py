# SPDX-License-Identifier: Apache-2.0
"""Why the daemon could not start, or would not take an engine."""

from __future__ import annotations

import errno

from typing import Final


_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.EINTR})


class StartError(Exception):
    """The daemon cannot serve with these settings; the message says what to do."""

    @property
    def may_pass(self) -> bool:
        """Whether the same start may go well later: then the configuration is not to blame."""
        cause = self.__cause__
        while cause is not None:
            if getattr(cause, "errno", None) in _SHORT:  # OSError, and libzmq's own, which is none
                return True
            cause = cause.__cause__
        return False


class NotNowError(StartError):
    """The daemon cannot serve as things stand on this machine: somebody else has what it needs, or it is not there yet."""

    @property
    def may_pass(self) -> bool:
        """Always: it is about the machine, not about the configuration."""
        return True


class RefusedError(Exception):
    """An engine is not taken: ``code`` for programs, ``reason`` for people, as in REFUSED."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
