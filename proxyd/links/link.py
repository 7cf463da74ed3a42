# SPDX-License-Identifier: Apache-2.0
"""
Links to the worker: ZMQ sockets that pyzmq makes and connects here, and that a round loop then uses alone.

From the hand-over until the loop has returned a link, nothing here may touch its sockets: to poll, close or collect one of them
meanwhile would hang or crash the process.
"""

from __future__ import annotations

import errno
import importlib
import itertools
import os

from typing import TYPE_CHECKING, Any, Final

import zmq

from proxyd._daemon import ffi, lib
from proxyd.errors import NotNowError, StartError
from proxyd.links import addresses
from proxyd.links.addresses import Addresses, Turn
from proxyd.links.monitor import Monitor
from proxyd.links.names import Names, UnresolvedError
from proxyd.links.probe import Probe
from proxyd.sessions.roundloop import text


if TYPE_CHECKING:
    from collections.abc import Callable

    from hostflag.messages import Geometry
    from proxyd.links.addresses import Address
    from proxyd.links.curve import Curve
    from proxyd.sessions.roundloop import RoundLoop


# libzmq gives each connection to the one with the fewest: a worker that floods delays only who shares its thread.
IO_THREADS: Final = 4
HIGH_WATER: Final = 4  # messages: one round is outstanding, the rest is control
# A worker that is back is to draft within a second, also where its host answered nothing meanwhile.
CONNECT_TIMEOUT_MS: Final = 500
HANDSHAKE_TIMEOUT_MS: Final = 500
RECONNECT_MS: Final = 50
RECONNECT_MAX_MS: Final = 200
CLOSE_LINGER_MS: Final = 100  # for CLOSE to get out


class Links:
    """
    Makes links to the worker at ``endpoint``, which may be changed: the ZMQ context, and the libzmq behind it as the loops see it.

    ``curve`` None: neither encrypted nor authenticated. Raises StartError where ``endpoint`` cannot be connected to, whoever may
    listen there. Names of hosts are looked up in ``names``; nothing here waits for that.
    """

    def __init__(self, endpoint: str, curve: Curve | None = None, names: Names | None = None) -> None:
        self.endpoint = endpoint
        self._addresses = Addresses(names or Names())
        self._curve = curve
        self._zmq = _load()
        try:
            self._context = zmq.Context(io_threads=IO_THREADS)
        except zmq.ZMQError as fault:
            lib.hfd_zmq_free(self._zmq)
            raise NotNowError(
                f"cannot make a ZMQ context: {fault}; raise the limit on open files (ulimit -n)"
            ) from fault
        self._tags = itertools.count(1)
        try:
            self.check(endpoint)
        except BaseException:
            self.close()
            raise

    def check(self, endpoint: str) -> None:
        """Raise StartError where no socket can be connected to ``endpoint``, whoever may listen there, and whatever a name stands for."""
        try:
            by_name = addresses.check(endpoint)
            self._link(endpoint, lib.HW_MAX_CONTROL_BYTES, None if by_name else self._addresses.of(endpoint)[0]).close()
        except (zmq.ZMQError, ValueError) as fault:
            raise StartError(
                f"cannot connect to a worker at {endpoint}: {fault}; give another endpoint (--worker)"
            ) from fault

    def probe(self, endpoint: str, on_barred: Callable[[str, str], None]) -> Probe:
        """Ask whether a worker answers at ``endpoint``: see ``Probe``. Raises zmq.ZMQError out of sockets."""
        return Probe(self._context, endpoint, self._addresses, self._curve, on_barred)

    def make(self, max_bytes: int, turn: Turn | None = None) -> Link:
        """
        Return a link that connects, and takes messages of up to ``max_bytes``. Raises zmq.ZMQError out of sockets.

        ``turn``: of the links before it that have not met a worker. The link does not connect where a name has no address.
        """
        try:
            found = self._addresses.of(self.endpoint)
        except UnresolvedError as fault:
            link = self._link(self.endpoint, max_bytes, None)
            link.unresolved = str(fault)
            return link
        return self._link(self.endpoint, max_bytes, (turn or Turn()).next(found))

    def served(self, link: Link) -> None:
        """Take it that a worker has answered on ``link``."""
        if link.address is not None:
            self._addresses.served(link.address)

    def close(self) -> None:
        """End the context. All links are closed; with one still open this would wait for it."""
        self._context.term()
        lib.hfd_zmq_free(self._zmq)

    def _link(self, endpoint: str, max_bytes: int, address: Address | None) -> Link:
        tag = next(self._tags)
        return Link(self._context, self._zmq, endpoint, address, tag=tag, max_bytes=max_bytes, curve=self._curve)


class Link:
    """
    A DEALER and its monitor. ``tag`` names it to the loop. The loop's from ``give`` until it says that it returned ``tag``.

    It connects to ``address``, of those that ``endpoint`` has; to nobody where that is None. ``unresolved``: why, where the name is to blame.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        loaded: Any,
        endpoint: str,
        address: Address | None,
        *,
        tag: int,
        max_bytes: int,
        curve: Curve | None,
    ) -> None:
        self.tag = tag
        self.endpoint = endpoint
        self.address = address
        self.unresolved = ""
        self._loaded = loaded
        self._max_bytes = max_bytes
        self._monitor: Monitor | None = None
        self._dealer = context.socket(zmq.DEALER)
        try:
            _configure(self._dealer, max_bytes)
            if curve is not None:
                curve.use(self._dealer)
            # Before connect, or the loop would miss the first connection.
            self._monitor = Monitor(context, self._dealer)
            if address is not None:
                address.connect(self._dealer)
        except BaseException:
            self.close()
            raise

    @property
    def connected(self) -> bool:
        """Whether the peer's side of the ZMQ handshake is there. Only before ``give``."""
        # IMMEDIATE: nothing can be sent before.
        return bool(self._dealer.getsockopt(zmq.EVENTS) & zmq.POLLOUT)

    def give(self, loop: RoundLoop, opening: bytes) -> None:
        """Hand it over; ``opening`` is the whole OPEN message. Raises OSError where the loop does not take it."""
        if self._monitor is None:
            raise OSError(errno.EBADF, "the link is closed")
        transport = ffi.new("struct hfd_transport **")
        dealer = ffi.cast("void *", self._dealer.underlying)
        monitor = ffi.cast("void *", self._monitor.reader.underlying)
        result = lib.hfd_zmq_open(self._loaded, dealer, monitor, self._max_bytes, transport)
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        try:
            loop.link(transport[0], self.tag, opening)
        except OSError:
            lib.hfd_zmq_discard(transport[0])
            raise

    def close(self) -> None:
        """Close both sockets: only before ``give``, after its failure, or once the loop has returned the link."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
        self._dealer.close(linger=CLOSE_LINGER_MS)


def max_message_bytes(geometry: Geometry) -> int:
    """Return the size of the largest message that a worker may send in a session of this geometry."""
    per_request = geometry.drafts * ffi.sizeof("int64_t") + geometry.extra_bytes
    reply = ffi.sizeof("struct hw_reply") + geometry.max_requests * per_request
    return int(ffi.sizeof("struct hw_header") + max(reply, lib.HW_MAX_CONTROL_BYTES))


def _configure(dealer: zmq.Socket[Any], max_bytes: int) -> None:
    dealer.setsockopt(zmq.LINGER, 0)
    # Without it messages queue for a worker that is not there, and would reach a later one.
    dealer.setsockopt(zmq.IMMEDIATE, 1)
    dealer.setsockopt(zmq.SNDHWM, HIGH_WATER)
    dealer.setsockopt(zmq.RCVHWM, HIGH_WATER)
    dealer.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    dealer.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
    dealer.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS)
    dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)


def _load() -> Any:
    loaded = ffi.new("struct hfd_zmq **")
    reason = ffi.new("const char **")
    backend = importlib.import_module("zmq.backend.cython._zmq")  # has libzmq in it, or beside it
    if lib.hfd_zmq_load(os.fsencode(str(backend.__file__)), loaded, reason) < 0:
        raise StartError(f"cannot use the libzmq of pyzmq: {text(reason[0])}")
    return loaded[0]
