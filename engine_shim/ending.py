# SPDX-License-Identifier: Apache-2.0
"""How a shim's keeper and sessions end, and how its daemon is told."""

from __future__ import annotations

import time

from engine_shim import farewell
from engine_shim.errors import StreamStuck
from engine_shim.keeper import Keeper
from engine_shim.pool import Pool
from engine_shim.seat import Seat
from engine_shim.trial import Trial
from hostflag.channel import Channel
from hostflag.messages import FromDaemon
from hostflag.verdicts import Loss


class Ending:
    """Step by step, up to ``until`` (``time.monotonic``). What was interrupted can be done again; of one thread at a time."""

    def __init__(self, keeper: Keeper, pool: Pool, seat: Seat, trial: Trial) -> None:
        self._keeper = keeper
        self._pool = pool
        self._seat = seat
        self._trial = trial
        self._lost = Loss.NONE  # what the session that is left was, and its socket until the daemon is told
        self._leaving: Channel[FromDaemon] | None = None

    def stop_keeper(self, until: float) -> None:
        """Raise StreamStuck, with what it is at, where it does not end."""
        if not self._keeper.stop(_left_s(until)):
            raise StreamStuck(
                f"the keeper did not end in time: it is {self._trial.doing or 'making a region known to the device'}"
            )

    def end_sessions(self, until: float) -> None:
        """End the session in use, and lost ones that the stream was not past yet. Raises StreamStuck."""
        for place in self._pool:
            if place.session is not None:
                place.session.end(_left_s(until))
                if place is not self._pool.in_use:
                    place.session = None

    def leave(self, until: float) -> None:
        """
        End all this, and take nothing away: other threads may submit to the process's very end.

        Raises StreamStuck: at once where the keeper does not end; else at the end, for a lost session that is stuck is not to keep the one
        in use from its time, nor from its goodbye.
        """
        self.stop_keeper(until)
        self._keeper.reason = "the process ends"
        self._seat.offered = None  # all else of the seat is the engine thread's
        used = self._pool.in_use
        stuck: list[StreamStuck] = []
        for place in sorted(self._pool, key=lambda place: place is not used):  # the one in use first
            try:
                if place.session is not None:
                    place.session.leave(_left_s(until))
            except StreamStuck as fault:
                stuck.append(fault)
                continue
            if place is used and place.session is not None:
                self.part(place.session.lost)
        if stuck:
            raise stuck[0]

    def part(self, lost: Loss) -> None:
        """Take the socket of the session in use from the pool. ``lost``: what that session was."""
        self._lost = lost
        # First one more who knows it: a fork at any moment finds it here or there.
        self._leaving = self._pool.leaving or self._leaving
        self._pool.give_away()

    def say_goodbye(self, until: float) -> None:
        """Tell the daemon, if there is one to be told. A daemon that was given up is not waited for."""
        if self._leaving is not None:
            try:
                farewell.say(self._leaving, _left_s(until) if self._lost is Loss.NONE else 0.0, lost=self._lost)
            finally:
                self._leaving = None  # closed; until then a forked child finds it here

    def forked(self) -> bool:
        """In a forked child: close the socket, if there is one. Whether there was."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.close()
        return leaving is not None


def _left_s(until: float) -> float:
    return max(0.0, until - time.monotonic())
