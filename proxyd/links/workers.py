# SPDX-License-Identifier: Apache-2.0
"""Which of several worker endpoints is in use: another where it does not answer, a more preferred one once that does again."""

from __future__ import annotations

import time

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from proxyd.links.barred import Barred
from proxyd.links.preference import Preference


if TYPE_CHECKING:
    from proxyd.links.addresses import Turn
    from proxyd.links.link import Link, Links
    from proxyd.links.probe import Probe
    from proxyd.service.events import Events, Timer


ANSWER_S: Final = 0.3  # an endpoint that has not answered a probe by then is taken for unreachable
TICK_S: Final = 0.01
UP_S: Final = 0.3  # how long a session may take to its worker before others are looked at
AGAIN_S: Final = 0.25  # between two looks while a session has no worker
BACK_S: Final = 0.5  # between two looks at what is preferred to the endpoint in use


class Follower(Protocol):
    """Whoever has a link to the endpoint in use."""

    @property
    def settled(self) -> bool:
        """Whether the worker at the endpoint in use has answered OPEN."""
        ...

    def move(self) -> None:
        """Have a link to the endpoint in use from now on."""


class Workers:
    """
    ``endpoints``: the most preferred one first; all have passed ``links.check``. ``moves`` counts changes of the one in use.

    ``barred``: whose handshakes fail. ``on_switch`` is called when there are other endpoints.

    With one endpoint nothing is ever looked at, and with several only while a session has no worker or a more preferred
    endpoint than the one in use could come back.
    """

    def __init__(self, events: Events, links: Links, endpoints: Sequence[str]) -> None:
        self.endpoints = tuple(endpoints)
        self.moves = 0
        self.barred = Barred()
        self.on_switch: Callable[[], None] = lambda: None
        self._events = events
        self._links = links
        self._log: Any = structlog.get_logger()
        self._preference = Preference(self.endpoints)
        self._followers: dict[Follower, None] = {}
        self._probes: list[Probe] = []
        self._answer_by = 0.0
        self._next: Timer | None = None  # the next look, or the next tick of the one under way
        self._next_at = 0.0  # of a look
        self._why = ""  # of the last switch
        self._switched: Callable[[], None] | None = None  # an operator waits for the look under way
        self._heard = False  # whether what the last switch led to answered in its look

    @property
    def endpoint(self) -> str:
        """Where new links lead."""
        return self._links.endpoint

    @property
    def settled(self) -> bool:
        """Whether every session has its worker."""
        return all(follower.settled for follower in self._followers)

    @property
    def answered(self) -> bool:
        """Whether the worker of the last switch has answered: every session, or the look at the switch where there was none to ask."""
        return self.settled and (self._heard or bool(self._followers))

    def make(self, max_bytes: int, turn: Turn) -> Link:
        """See ``Links.make``."""
        return self._links.make(max_bytes, turn)

    def served(self, link: Link) -> None:
        """See ``Links.served``."""
        self._links.served(link)

    def probe(self, endpoint: str) -> Probe:
        """See ``Links.probe``."""
        return self._links.probe(endpoint, self.barred.probed)

    def follow(self, follower: Follower) -> None:
        """Tell ``follower`` of every move, until ``leave``."""
        self._followers[follower] = None
        self._look_in(UP_S)

    def leave(self, follower: Follower) -> None:
        self._followers.pop(follower, None)

    def trouble(self) -> None:
        """A session has lost its worker."""
        self._look_in(0.0)

    def switch(self, endpoints: Sequence[str], on_decided: Callable[[], None], why: str) -> None:
        """
        Use these from now on: the first one that answers, the first one of all where none does; ``on_decided`` is called then.

        ``why`` stands in the log.

        Raises StartError, with nothing changed, where one of them cannot be connected to.
        """
        for endpoint in endpoints:
            self._links.check(endpoint)
        self._end_look()
        self.endpoints = tuple(endpoints)
        self._preference = Preference(self.endpoints)
        self._why = why
        superseded, self._switched = self._switched, on_decided
        if superseded is not None:
            superseded()
        self.on_switch()
        self._look()

    def close(self) -> None:
        """Look no more."""
        self._end_look()
        self._followers.clear()

    def _look_in(self, seconds: float) -> None:
        if len(self.endpoints) == 1 or self._probes:
            return
        at = time.monotonic() + seconds
        # A look that is due sooner stays: engines that come again and again must not put it off.
        if self._next is not None and self._next_at <= at:
            return
        self._cancel_next()
        self._next, self._next_at = self._events.after(seconds, self._look), at

    def _look(self) -> None:
        # First: whatever goes wrong here, this look has an end, and the next one comes.
        self._next = self._events.after(TICK_S, self._tick)
        self._answer_by = time.monotonic() + ANSWER_S
        self._close_probes()
        everywhere = self._switched is not None or not self.settled
        for endpoint in self.endpoints if everywhere else self._preferred():
            try:
                self._probes.append(self.probe(endpoint))
            except Exception as fault:  # noqa: BLE001 - whatever it was, the others are probed
                self._log.error("an endpoint cannot be probed", endpoint=endpoint, reason=str(fault), rate_limited=True)
        self._cancel_next()
        self._tick()

    def _tick(self) -> None:
        # First: whatever goes wrong here, the looks go on.
        self._next = self._events.after(TICK_S, self._tick)
        answered = {probe.endpoint for probe in self._probes if self._has_answered(probe)}
        best = self._switched is not None and self.endpoints[0] in answered
        if len(answered) < len(self._probes) and not best and time.monotonic() < self._answer_by:
            return
        self._end_look()
        try:
            self._decide(answered)
        finally:
            if not self.settled:
                self._look_in(AGAIN_S)
            elif self._preferred():
                self._look_in(BACK_S)

    def _has_answered(self, probe: Probe) -> bool:
        try:
            return probe.answered()
        except Exception as fault:  # noqa: BLE001 - whatever it was, the others are asked, and the look ends
            endpoint, reason = probe.endpoint, str(fault)
            self._log.error(
                "a probe fails", endpoint=endpoint, reason=reason, exc_info=fault, rate_limited=True, rate_key=endpoint
            )
            return False

    def _decide(self, answered: set[str]) -> None:
        if self._switched is not None:
            told, self._switched = self._switched, None
            self._move(self._preference.first(answered), self._why)
            self._heard = self.endpoint in answered
            told()
        elif choice := self._preference.choice(self.endpoint, answered, settled=self.settled, now=time.monotonic()):
            self._move(*choice)

    def _preferred(self) -> tuple[str, ...]:
        """Return the endpoints that are preferred to the one in use."""
        return (
            self.endpoints[: self.endpoints.index(self.endpoint)] if self.endpoint in self.endpoints else self.endpoints
        )

    def _move(self, endpoint: str, why: str) -> None:
        if endpoint == self.endpoint:
            return
        self._log.warning("worker endpoint changed", before=self.endpoint, endpoint=endpoint, reason=why)
        self._links.endpoint = endpoint
        self.moves += 1
        for follower in list(self._followers):
            follower.move()

    def _end_look(self) -> None:
        # In this order: with a probe that is left no other look begins, so that the tick has to go on.
        self._close_probes()
        self._cancel_next()

    def _close_probes(self) -> None:
        while self._probes:
            self._probes.pop().close()

    def _cancel_next(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
