# SPDX-License-Identifier: Apache-2.0
"""One PING to one address, for a session that is not open there."""

from __future__ import annotations

import os

from typing import TYPE_CHECKING, Any, Final

import zmq

from hostflag import wire
from hostflag.wire import BadMessage, Kind
from proxyd._daemon import lib
from proxyd.links.monitor import Monitor


if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyd.links.addresses import Address
    from proxyd.links.curve import Curve


MAX_MESSAGES: Final = 4  # a look: one answer is due
RECONNECT_MS: Final = 20


class Ping:
    """
    Sent to ``address`` on a socket of the context that it is given. It owns that until ``close``.

    ``on_barred`` gets the reason of each handshake that failed. Raises zmq.ZMQError where no socket can be had.
    """

    def __init__(
        self, context: zmq.Context[Any], address: Address, curve: Curve | None, on_barred: Callable[[str], None]
    ) -> None:
        self.address = address
        self._on_barred = on_barred
        self._answered = False
        self._monitor: Monitor | None = None
        self._session = int.from_bytes(os.urandom(8), "little")
        self._dealer = context.socket(zmq.DEALER)
        try:
            self._dealer.setsockopt(zmq.LINGER, 0)
            self._dealer.setsockopt(zmq.MAXMSGSIZE, lib.HW_MAX_CONTROL_BYTES)
            self._dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            if curve is not None:
                curve.use(self._dealer)
            self._monitor = Monitor(context, self._dealer)
            address.connect(self._dealer)
            self._dealer.send(wire.encode_header(Kind.PING, self._session), zmq.NOBLOCK)  # kept until it is connected
        except BaseException:
            self.close()
            raise

    def answered(self) -> bool:
        """Look, without waiting."""
        if self._monitor is not None:
            for reason in self._monitor.failures():
                self._on_barred(reason)
        for _ in range(MAX_MESSAGES):
            if self._answered:
                break
            try:
                self._answered = self._is_answer(self._dealer.recv_multipart(zmq.NOBLOCK))
            except zmq.ZMQError:  # nothing there
                break
        return self._answered

    def close(self) -> None:
        """Close its sockets. Closing twice is harmless."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
        self._dealer.close()

    def _is_answer(self, parts: list[bytes]) -> bool:
        try:
            header = wire.decode_header(parts[0])
        except BadMessage:
            return False
        return header.session == self._session and header.kind in {Kind.REFUSED, Kind.PONG}
