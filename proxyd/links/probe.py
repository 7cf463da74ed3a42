# SPDX-License-Identifier: Apache-2.0
"""Whether a worker answers at an endpoint: asked by a PING for a session that is not open there."""

from __future__ import annotations

import functools

from typing import TYPE_CHECKING, Any

import zmq

from proxyd.links.names import UnresolvedError
from proxyd.links.ping import Ping


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from proxyd.links.addresses import Address, Addresses
    from proxyd.links.curve import Curve


class Probe:
    """
    One question to one endpoint: a PING to each address that ``addresses`` has of it, once there are any. It owns sockets until ``close``.

    A worker has to answer a PING for a session that it does not know (docs/CONTRACT.md); one that hangs, or is no worker,
    accepts connections all the same. ``on_barred`` gets endpoint and reason of each handshake that failed; ``fault`` is the last
    reason, or why it cannot be asked. Raises zmq.ZMQError where no socket can be had.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        addresses: Addresses,
        curve: Curve | None,
        on_barred: Callable[[str, str], None],
    ) -> None:
        self.endpoint = endpoint
        self.fault: str | None = None
        self._context = context
        self._addresses = addresses
        self._curve = curve
        self._on_barred = on_barred
        self._answered = False
        self._pings: list[Ping] = []
        self._ask()

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def answered(self) -> bool:
        """Look, without waiting."""
        if not self._pings:
            self._ask_late()
        for ping in self._pings:
            if not self._answered and ping.answered():
                self._answered = True
                self._addresses.served(ping.address)
        return self._answered

    def close(self) -> None:
        """Close its sockets. Closing twice is harmless."""
        while self._pings:
            self._pings.pop().close()

    def _ask(self) -> None:
        try:
            found = self._addresses.of(self.endpoint)
        except UnresolvedError as fault:
            self.fault = str(fault)
            return
        self.fault = None
        try:
            for address in found:
                barred = functools.partial(self._is_barred, address)
                self._pings.append(Ping(self._context, address, self._curve, barred))
        except BaseException:
            self.close()
            raise

    def _ask_late(self) -> None:
        try:
            self._ask()
        except zmq.ZMQError as fault:
            self.fault = f"it cannot be asked: {fault}"

    def _is_barred(self, address: Address, reason: str) -> None:
        self.fault = address.blamed(reason)
        self._on_barred(self.endpoint, self.fault)
