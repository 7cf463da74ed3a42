# SPDX-License-Identifier: Apache-2.0
"""One try to get a session: which region it is on, and what becomes of the region where the try fails half-way."""

from __future__ import annotations

import os
import time

from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine_shim.errors import ConnectionRefusedByDaemon, HandshakeFailed, NoRegion
from engine_shim.handshake import Bell, Handshake, Interrupted, reach
from engine_shim.pool import Place, Pool
from engine_shim.region import Region
from engine_shim.session import Session, SessionTerms
from engine_shim.shimoptions import ShimOptions
from engine_shim.stream import Stream
from engine_shim.trial import Trial
from engine_shim.trust import trusted_uids
from hostflag.channel import Channel
from hostflag.messages import FromDaemon, Hello, Ready, Welcome


SETTLE_S: Final = 0.25  # for a stream that is about to be past a region's rounds, before a new region is made
LOOK_S: Final = 0.002


class Handover:
    """
    Tries, one after the other, with whatever daemon is at ``path`` by then.

    ``place``: where the last session is. ``adopted``: whether its region was another session's before.
    """

    def __init__(
        self, path: Path, hello: Hello, *, stream: Stream, pool: Pool, trial: Trial, options: ShimOptions
    ) -> None:
        self._path = path
        self._hello = hello
        self._stream = stream
        self._pool = pool
        self._trial = trial
        self._options = options
        self.place: Place | None = None
        self.adopted = False

    def run(self, bell: Bell, loss: int) -> Session:
        """
        Return a new session. Raises Interrupted where ``bell`` says that it is over.

        Raises DaemonUnreachable, ConnectionRefusedByDaemon, HandshakeFailed, NoRegion, or AsyncRefused by a strict self-test. A connection that a region went over, either way,
        is that region's fence then; any other is closed.
        """
        self._trial.settle(self._path, bell)
        self._check_room(bell.over)
        until = time.monotonic() + self._options.handshake_s
        channel = reach(self._path, 0)
        self.place = None
        try:
            trusted = trusted_uids(self._path, self._options.session.daemon_uids)
            with Handshake(channel, self._hello, bell.patient_until(until), trusted) as handshake:
                welcome = handshake.greet()
                place = self._free(bell.over)
                self.adopted = place is not None
                ready = self._adopt(handshake, channel, place) if place else self._ask(handshake, channel)
                return self._begin(channel, welcome, ready, loss)
        except BaseException:
            self._give_up(channel)
            raise

    def _give_up(self, channel: Channel[FromDaemon]) -> None:
        if self.place is None:
            channel.close()
        else:
            self.place.region.withdraw()

    def _check_room(self, over: Callable[[], bool]) -> None:
        """Before a daemon is asked: it would make a session, again and again, that cannot have a region. Raises NoRegion."""
        pool = self._pool
        pool.look()
        if not pool.room and self._free(over) is None and not pool.room:
            raise NoRegion(pool.shortage)

    def _free(self, over: Callable[[], bool]) -> Place | None:
        """Return a region that can be offered. One that only waits for the stream is worth a moment."""
        until = time.monotonic() + SETTLE_S
        while True:
            self._pool.look()
            place = self._pool.free()
            if place is not None or not self._pool.settling or time.monotonic() >= until:
                return place
            if over():
                raise Interrupted
            time.sleep(LOOK_S)

    def _adopt(self, handshake: Handshake, channel: Channel[FromDaemon], place: Place) -> Ready:
        base = place.region.base()
        if base is None:
            raise HandshakeFailed("the region to be adopted is not at rest")
        place.region.offer()
        place.owner = channel
        self.place = place
        try:
            handshake.attach(place.region.fileno(), base)
            return handshake.ready()
        except ConnectionRefusedByDaemon:
            place.shunned = True
            raise

    def _ask(self, handshake: Handshake, channel: Channel[FromDaemon]) -> Ready:
        options, geometry = self._options.session, self._hello.geometry
        first = not any(self._pool)
        fd = handshake.bring(options.base) if options.base and first else handshake.create()
        try:
            region = Region(fd, self._stream, geometry, options.backlog(geometry))
        finally:
            os.close(fd)  # the map stays
        self.place = self._pool.add(region, channel)
        return handshake.ready()

    def _begin(self, channel: Channel[FromDaemon], welcome: Welcome, ready: Ready, loss: int) -> Session:
        assert self.place is not None
        terms = SessionTerms(
            deadline_ms=self._options.deadline_ms,
            mode=self._trial.mode,
            options=self._options.session,
            owns_region=False,
            loss_fd=loss,
        )
        session = Session(self.place.region, channel, welcome=welcome, ready=ready, stream=self._stream, terms=terms)
        self.place.session = session
        for place in self._pool:
            place.shunned = False
        return session
