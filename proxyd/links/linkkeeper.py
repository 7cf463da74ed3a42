# SPDX-License-Identifier: Apache-2.0
"""Keeps one session linked to the worker in use: gives its loop a link, closes what comes back, gives a new one, says what changed."""

from __future__ import annotations

import errno
import time

from typing import TYPE_CHECKING, Any, Final

import msgspec
import zmq

from hostflag.control import Opened, Refused
from proxyd.links.addresses import Turn
from proxyd.links.warming import Warming
from proxyd.sessions.peer import printable
from proxyd.sessions.roundloop import EventKind, LinkState


if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyd.links.link import Link
    from proxyd.links.workers import Workers
    from proxyd.service.events import Events, Timer
    from proxyd.sessions.roundloop import LoopEvent, RoundLoop


SAY_UNREACHABLE_S: Final = 1.0  # a worker that is back sooner is not worth two lines
SOUND_S: Final = 2.0  # a link that was up for so long makes the next one come without delay
FIRST_DELAY_S: Final = 0.02
# libzmq connects again by itself after a connection is lost, but never after one that broke its protocol.
RELINK_S: Final = 0.3
# What one address of a worker's name has to connect; then it is the next one's turn, also where another answer has come since.
TURN_S: Final = 0.5
# Until a name that had no address is looked at again, and a link that the loop has not taken yet.
NAMELESS_S: Final = 0.1
MAX_DELAY_S: Final = 0.4  # so that a worker that is back drafts again within a second
BARRED_S: Final = 2.0  # a door that is still shut is met again before
_OPENED: Final = msgspec.json.Decoder(Opened)
_REFUSED: Final = msgspec.json.Decoder(Refused)


class LinkKeeper:
    """``opening`` is the session's whole OPEN message; ``max_bytes`` the largest message that its worker may send."""

    def __init__(
        self,
        events: Events,
        workers: Workers,
        loop: RoundLoop,
        *,
        opening: bytes,
        max_bytes: int,
        log: Any,
        rate_key: str,
    ) -> None:
        self.worker: str | None = None  # what the worker that answered last calls itself
        self._events = events
        self._workers = workers
        self._loop = loop
        self._opening = opening
        self._max_bytes = max_bytes
        self._log = log
        self._limited: Final = {"rate_limited": True, "rate_key": rate_key, "rate_burst": 1}
        # Every link that a loop may still be using is in here: losing the last reference would close its sockets.
        self._given: dict[int, Link] = {}
        self._warming: Warming | None = None
        self._answered = ""  # the endpoint whose worker answered OPEN last, for good or ill
        self._refusal = ""  # what that worker said, where it was for ill
        self._barred = ("", 0.0)  # why the last handshake with the endpoint in use failed, and until when that counts
        self._said: tuple[str, dict[str, str]] = ("", {})  # the last state that was written to the log
        self._turn = Turn()  # of the links since a worker answered
        self._resets = 0  # links in a row that were given back without having been sound
        self._retry: Timer | None = None  # gives a link, in place of the one before where that is still there
        self._notice: Timer | None = None
        self._sound: Timer | None = None
        self._ending = False

    def start(self) -> None:
        self._expect_worker()
        self._workers.follow(self)
        self._give()

    @property
    def settled(self) -> bool:
        """Whether the worker at the endpoint in use has answered OPEN."""
        answered = self._answered == self._workers.endpoint and self._warming is None
        return answered and self._has_answer()

    @property
    def endpoint(self) -> str:
        """Where the worker is that has answered; where one is to answer, while none has."""
        return (self._answered if self._has_answer() else "") or self._workers.endpoint

    @property
    def why(self) -> str:
        """Why the worker at ``endpoint`` gives no drafts; empty where that is not known, or it does."""
        if self._has_answer():
            return self._refusal
        reason, until = self._barred
        return reason if time.monotonic() < until else ""

    def move(self) -> None:
        """Have a link to the endpoint in use from now on: connected first, so that no more than a round in flight falls back."""
        if self._ending:
            return
        self._resets, self._turn = 0, Turn()
        self._barred = ("", 0.0)
        self._cancel_retry()
        self._stop_warming()
        self._expect_worker()
        if link := self._made():
            self._warming = Warming(self._events, link, self._take_warm)

    def take(self, event: LoopEvent) -> None:
        """Act on a LINK event of the loop."""
        match event.kind:
            case EventKind.LINK_UP:
                self._up(event.tag, event.body)
            case EventKind.LINK_DOWN:
                self._down(event.reason)
                self._give_later(self._relink, RELINK_S)
            case EventKind.LINK_BARRED:
                self._is_barred(event.tag, event.reason)
                self._down(event.reason)
                self._give_later(self._relink, RELINK_S)
            case EventKind.LINK_REFUSED:
                self._refused(event.tag, event.body)
            case EventKind.LINK_RETURNED:
                self._given.pop(event.tag).close()
            case EventKind.LINK_WANTED:
                self._down(event.reason)
                self._give_later(self._give)

    def stop(self) -> None:
        """Give no more links. The loop returns the one it has."""
        self._ending = True
        self._workers.leave(self)
        self._stop_warming()
        for timer in (self._retry, self._notice, self._sound):
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Close what the loop, which is over, did not return."""
        while self._given:
            self._given.popitem()[1].close()

    def _give(self) -> None:
        if self._ending:
            return
        self._stop_warming()
        if link := self._made():
            self._hand_over(link)

    def _take_warm(self, link: Link) -> None:
        self._warming = None
        self._hand_over(link)

    def _made(self) -> Link | None:
        try:
            return self._workers.make(self._max_bytes, self._turn)
        except zmq.ZMQError as fault:
            self._log.error("no link to the worker can be made", reason=str(fault), **self._limited)
            self._give_later(self._give)
            return None

    def _hand_over(self, link: Link) -> None:
        try:
            link.give(self._loop, self._opening)
        except OSError as fault:
            link.close()
            if fault.errno != errno.ESHUTDOWN:  # the loop is over: STOPPED is on its way
                self._log.error("the round loop takes no link", reason=str(fault), **self._limited)
                self._give_later(self._give)
            return
        self._given[link.tag] = link
        if link.unresolved:
            self._barred = (link.unresolved, time.monotonic() + BARRED_S)
            self._give_later(self._relink, NAMELESS_S)
        elif link.address is not None and link.address.name:
            self._cancel_retry()
            self._retry = self._events.after(TURN_S, self._relink)

    def _relink(self) -> None:
        if len(self._given) > 1:
            # A round is in flight on the link before, and what the loop says is of that one. It will say nothing of the next, where
            # that leads nowhere.
            self._retry = self._events.after(NAMELESS_S, self._relink)
        elif self._loop.link_state() in {LinkState.NONE, LinkState.CONNECTING}:
            self._give()

    def _give_later(self, give: Callable[[], None], least_s: float = 0.0) -> None:
        if self._ending:
            return
        delay = 0.0 if self._resets == 0 else min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self._resets, 16))
        self._resets += 1
        self._cancel_retry()
        self._retry = self._events.after(max(delay, least_s), give)

    def _has_answer(self) -> bool:
        return self._loop.link_state() in {LinkState.UP, LinkState.REFUSED}

    def _is_barred(self, tag: int, reason: str) -> None:
        endpoint, address = self._given[tag].endpoint, self._given[tag].address
        if address is not None:
            reason = address.blamed(reason)
        self._workers.barred.say(endpoint, reason)
        if endpoint == self._workers.endpoint:  # and no link that another takes the place of
            self._barred = (reason, time.monotonic() + BARRED_S)

    def _answers(self, tag: int) -> None:
        self._answered, self._refusal, self._barred = self._given[tag].endpoint, "", ("", 0.0)
        self._turn = Turn()
        self._workers.served(self._given[tag])
        self._cancel_notice()
        # Else another link is to follow, or has been given and may lead nowhere.
        if tag == max(self._given) and self._answered == self._workers.endpoint:
            self._cancel_retry()

    def _up(self, tag: int, body: bytes) -> None:
        self._answers(tag)
        if self._sound is not None:
            self._sound.cancel()
        self._sound = self._events.after(SOUND_S, self._is_sound)
        try:
            opened = _OPENED.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            self._log.warning("the worker's OPENED is not sound", reason=printable(str(fault)), **self._limited)
            opened = Opened(worker="?", drafter="?")
        before, self.worker = self.worker, printable(opened.worker)
        if before not in {None, self.worker}:
            self._log.info("worker changed", before=before, worker=self.worker, endpoint=self._answered)
        self._say("worker up", worker=self.worker, drafter=printable(opened.drafter))

    def _down(self, reason: str) -> None:
        if self._sound is not None:
            self._sound.cancel()
            self._sound = None
            self._log.warning("worker link lost", reason=reason, endpoint=self._answered, **self._limited)
        self._expect_worker()
        self._workers.trouble()

    def _refused(self, tag: int, body: bytes) -> None:
        self._answers(tag)
        try:
            refused = _REFUSED.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            refused = Refused(code="?", reason=f"its REFUSED is not sound: {fault}")
        code, reason = printable(refused.code), printable(refused.reason)
        self._refusal = f"{code}: {reason}"
        self._say("worker refused the session", code=code, reason=reason)

    def _expect_worker(self) -> None:
        if self._notice is None and not self._ending:
            self._notice = self._events.after(SAY_UNREACHABLE_S, self._unreachable)

    def _unreachable(self) -> None:
        self._notice = None
        state = self._loop.link_state()
        if state is LinkState.OPENING:
            self._say("worker unreachable, waiting", reason="it is connected, and has not answered OPEN yet")
        elif state in {LinkState.NONE, LinkState.CONNECTING}:
            self._say("worker unreachable, waiting")

    def _cancel_notice(self) -> None:
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _stop_warming(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            self._warming = None

    def _is_sound(self) -> None:
        self._resets = 0

    def _say(self, what: str, **details: str) -> None:
        details["endpoint"] = self._workers.endpoint
        if (what, details) != self._said:
            self._said = (what, details)
            write = self._log.info if what == "worker up" else self._log.warning
            write(what, **details)
