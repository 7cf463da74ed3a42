# SPDX-License-Identifier: Apache-2.0
"""Whether a worker answers at an endpoint: asked by a PING for a session that is not open there."""

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
    from types import TracebackType

    from proxyd.links.curve import Curve


MAX_MESSAGES: Final = 4  # a look: one answer is due
RECONNECT_MS: Final = 20


class Probe:
    """
    One question to one endpoint, whose context it is given. It owns a socket until ``close``.

    A worker has to answer a PING for a session that it does not know (docs/CONTRACT.md); one that hangs, or is no worker,
    accepts connections all the same. ``on_barred`` gets endpoint and reason of each handshake that failed; ``barred`` is the last
    reason. Raises zmq.ZMQError where no socket can be had.
    """

    def __init__(
        self, context: zmq.Context[Any], endpoint: str, curve: Curve | None, on_barred: Callable[[str, str], None]
    ) -> None:
        self.endpoint = endpoint
        self.barred: str | None = None
        self._on_barred = on_barred
        self._answered = False
        self._monitor: Monitor | None = None
        self._session = int.from_bytes(os.urandom(8), "little")
        self._dealer = context.socket(zmq.DEALER)
        try:
            self._dealer.setsockopt(zmq.LINGER, 0)
            self._dealer.setsockopt(zmq.MAXMSGSIZE, lib.HW_MAX_CONTROL_BYTES)
            self._dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            self._dealer.setsockopt(zmq.IPV6, 1)
            if curve is not None:
                curve.use(self._dealer)
            self._monitor = Monitor(context, self._dealer)
            self._dealer.connect(endpoint)
            self._dealer.send(wire.encode_header(Kind.PING, self._session), zmq.NOBLOCK)  # kept until it is connected
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def answered(self) -> bool:
        """Look, without waiting."""
        if self._monitor is not None:
            for reason in self._monitor.failures():
                self.barred = reason
                self._on_barred(self.endpoint, reason)
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
