# SPDX-License-Identifier: Apache-2.0
"""How a session's socket ends: the engine says goodbye, the daemon lets go and closes; the engine never closes first."""

from __future__ import annotations

import contextlib
import select
import socket
import time

from typing import Final

from hostflag.channel import BadMessage, Channel, ChannelClosed, ChannelTimeout
from hostflag.messages import Bye, FromDaemon, Goodbye
from hostflag.verdicts import Loss


SLICE_S: Final = 0.05
GRACE_S: Final = 0.2  # for a daemon that was given all the time there was


def say(channel: Channel[FromDaemon], timeout_s: float, *, lost: Loss) -> bool:
    """
    Say GOODBYE unless the session was lost, wait for the daemon's end to close, close ours.

    Whether the daemon's end closed in time. If not, ours is closed all the same: nothing of the region is mapped any more.
    """
    try:
        if lost is Loss.NONE:
            # A daemon that is gone already, or reads nothing, is one that we wait for below.
            with contextlib.suppress(ChannelClosed, ChannelTimeout):
                channel.send(Goodbye())
        with contextlib.suppress(OSError):
            channel.socket.shutdown(socket.SHUT_WR)
        return _hung_up(channel, max(timeout_s, GRACE_S))
    finally:
        channel.close()


def _hung_up(channel: Channel[FromDaemon], timeout_s: float) -> bool:
    """Wait for POLLHUP. What is still queued is read, so that the daemon's last messages are not an error to it."""
    until = time.monotonic() + timeout_s
    poller = select.poll()
    events = select.POLLIN
    poller.register(channel.fileno(), events)
    while (left := until - time.monotonic()) > 0:
        try:
            ready = poller.poll(min(left, SLICE_S) * 1000 if events else left * 1000)
        except OSError:  # the kernel is short of memory: it is not waited for
            return False
        if any(event & select.POLLHUP for _, event in ready):
            return True
        if ready and not _read_one(channel):
            events = 0
            poller.modify(channel.fileno(), events)
    return False


def _read_one(channel: Channel[FromDaemon]) -> bool:
    """Take one message that nobody waits for. False: nothing more is to be read, only POLLHUP to be waited for."""
    try:
        received = channel.receive(0)
    except (ChannelClosed, ChannelTimeout, BadMessage):
        return False
    received.close_fds()
    return not isinstance(received.message, Bye)
