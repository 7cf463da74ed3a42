# SPDX-License-Identifier: Apache-2.0
"""What becomes of a socket's connections: libzmq's monitor, switched on and off so that no failure between leaves anything."""

from __future__ import annotations

import itertools
import struct

from typing import TYPE_CHECKING, Any, Final

import zmq

from proxyd._daemon import lib


if TYPE_CHECKING:
    from collections.abc import Iterator


_EVENT: Final = struct.Struct("=HI")
_MISMATCH: Final = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
# Word for word what a round loop says of its link (native/zmqincoming.c): one fault, one text.
WENT: Final = "the connection went before the ZMQ handshake was over"
NO_DETAIL: Final = "the ZMQ handshake was broken off: no worker there, or it has other CURVE keys than ours"
MISMATCH: Final = "one side has CURVE keys, the other none"
PROTOCOL: Final = "the peer does not speak ZMQ as it should"
AUTH: Final = "the worker does not allow our CURVE key"
_numbers: Final = itertools.count(1)


class Monitor:
    """
    The monitor of ``watched``, which is not connected yet: ``reader`` gets the news. Until ``close``, and that before ``watched`` is closed.

    Raises zmq.ZMQError out of sockets, with nothing left.
    """

    def __init__(self, context: zmq.Context[Any], watched: zmq.Socket[Any]) -> None:
        self._watched = watched
        self._handshaking = False
        # The reader first. A monitor that is on says goodbye to its reader when it or its socket ends, and waits for one that is not
        # there: libzmq's only reaper thread, and no socket of this process would ever be freed again. What needs a descriptor comes
        # before the monitor is on; to connect within the process needs none.
        self.reader = context.socket(zmq.PAIR)
        try:
            # Not the name that pyzmq makes of the descriptor's number, which soon is another socket's.
            address = f"inproc://monitor-{next(_numbers)}"
            watched.monitor(address, lib.HFD_ZMQ_EVENTS)
            self.reader.connect(address)
        except BaseException:
            self.reader.close(linger=0)
            raise

    def close(self) -> None:
        """Switch it off. Once."""
        # In this order: it says goodbye to its reader.
        self._watched.disable_monitor()
        self.reader.close(linger=0)

    def failures(self) -> Iterator[str]:
        """Yield why handshakes failed since the last look, without waiting. Not while a round loop reads."""
        while True:
            try:
                event, value = _EVENT.unpack(self.reader.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.ZMQError:  # nothing there
                return
            if reason := self._take(event, value):
                yield reason

    def _take(self, event: int, value: int) -> str | None:
        handshaking, self._handshaking = self._handshaking, event == zmq.EVENT_CONNECTED
        match event:
            case zmq.EVENT_DISCONNECTED:
                return WENT if handshaking else None
            case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                return NO_DETAIL
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                return MISMATCH if value == _MISMATCH else PROTOCOL
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return AUTH
        return None
