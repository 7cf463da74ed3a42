# SPDX-License-Identifier: Apache-2.0
"""What can go wrong on the engine side. Each message says what was wrong and, where it is known, what to do."""

from __future__ import annotations

import errno
import os


class ShimError(Exception):
    """Anything that this package raises on purpose."""


class DaemonUnreachable(ShimError):
    """Nobody answers at the socket."""


class ConnectionRefusedByDaemon(ShimError):
    """The daemon said REFUSED. ``code`` is for programs, ``reason`` for people."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"the daemon refused the session ({code}): {reason}")
        self.code = code
        self.reason = reason


class HandshakeFailed(ShimError):
    """The daemon answered with something that is no handshake, or not in time, or its region cannot be used."""


class NoRegion(HandshakeFailed):
    """No daemon was asked: every region there may be is taken. The message says by what, and what to do."""


class DeviceRefused(HandshakeFailed):
    """The device cannot serve the region; the message has its driver's own name for that."""


class SubmitFailed(ShimError):
    """
    A submit could not be done. ``error`` is a positive errno.

    EINVAL: the batch was none, nothing happened. EBUSY: the stream is being captured, nothing happened. Else a stream operation failed;
    the message has the driver's own name for why, and says so where the session is lost with it.
    """

    def __init__(self, error: int, what: str) -> None:
        super().__init__(f"{what}: {os.strerror(error)}")
        self.error = error

    @classmethod
    def of(cls, error: int, fault: str | None, *, lost: bool) -> SubmitFailed:
        """Return what became of a submit. ``fault``: what the stream's driver said last. ``lost``: whether a session went with it."""
        if error == errno.EINVAL:
            return cls(error, "the batch does not fit the session's geometry, or lacks an array")
        if error == errno.EBUSY:
            return cls(error, "the stream is being captured into a graph: submit before or after that")
        what = f"a stream operation failed ({fault})" if fault else "a stream operation failed"
        return cls(error, f"{what}, the session is lost" if lost else what)


class StreamFault(ShimError):
    """A stream operation was not accepted. ``error`` is a positive errno."""

    def __init__(self, error: int, what: str) -> None:
        super().__init__(f"{what}: {os.strerror(error)}")
        self.error = error


class DriverFault(ShimError):
    """The CUDA driver is not there, or said no; the message has its own name for that. ``error`` is a positive errno."""

    def __init__(self, error: int, what: str) -> None:
        super().__init__(what)
        self.error = error


class StreamRefused(ShimError):
    """No session can be on this stream. The message says why, and which stream can have one."""


class StreamStuck(ShimError):
    """
    The stream does not get past what it was given, or a self-test or another thread is at what is to be closed.

    What may still be touched is kept; closing can be tried again.
    """


class AsyncRefused(ShimError):
    """Rounds cannot be parked on this stream, and a strict start was asked for. The message says why."""


class SessionClosed(ShimError):
    """The session was closed; only its last status can be had."""
