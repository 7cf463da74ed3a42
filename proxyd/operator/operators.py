# SPDX-License-Identifier: Apache-2.0
"""A connection of somebody who looks after the daemon: dsv41-proxyctl, or another program that speaks its messages."""

from __future__ import annotations

import os

from typing import TYPE_CHECKING, Any, Final

from hostflag.channel import BadMessage, Channel, ChannelClosed, ChannelTimeout
from hostflag.messages import (
    PROTOCOL_VERSION,
    Done,
    Drain,
    DumpRequest,
    OperatorHello,
    Refused,
    Reload,
    Resume,
    StatusRequest,
    SwitchWorker,
    ToDaemon,
    ToOperator,
)
from hostflag.version import VERSION
from proxyd.errors import RefusedError, StartError
from proxyd.links.endpoints import checked_endpoints
from proxyd.service.events import READ
from proxyd.sessions.peer import Peer, printable


if TYPE_CHECKING:
    from collections.abc import Callable

    from proxyd.operator.controls import Controls
    from proxyd.service.events import Events, Timer
    from proxyd.sessions.admission import Admission


IDLE_LIMIT_S: Final = 30.0
SETTLE_S: Final = 0.7  # how long a switch is waited for before its answer says how things stand
DRAIN_S: Final = 2.0  # the same for rounds in flight
MOST_REASON_LETTERS: Final = 2000
TICK_S: Final = 0.01


class Operator:
    """
    Owns ``channel``, on which OPERATOR came, until it is closed; ``on_over`` hears of that.

    Raises OSError where the channel cannot be watched; then it stays the caller's.
    """

    def __init__(
        self,
        events: Events,
        channel: Channel[ToDaemon],
        controls: Controls,
        log: Any,
        on_over: Callable[[Operator], None],
    ) -> None:
        self._events = events
        self._channel = channel
        self._controls = controls
        self._log = log
        self._on_over = on_over
        events.watch(channel, READ, self._ready)
        self._timer: Timer = events.after(IDLE_LIMIT_S, self.close)

    def greet(self) -> None:
        """Answer OPERATOR, once: only when whoever made this can hear of its end, which may come of that."""
        self._answer(Done(text=f"dsv41-proxyd {VERSION}, pid {os.getpid()}"))

    def close(self) -> None:
        """Close the connection. Closing twice is harmless."""
        if self._channel.fileno() < 0:
            return
        self._timer.cancel()
        self._events.forget(self._channel)
        self._channel.close()
        self._on_over(self)

    def _ready(self) -> None:
        try:
            received = self._channel.receive(0)
            received.close_fds()
            self._take(received.message)
        except ChannelTimeout:
            return
        except ChannelClosed:
            self.close()
        except BadMessage as fault:
            self._end("message", printable(str(fault)))
        except RefusedError as fault:
            self._answer(Refused(code=fault.code, reason=short(fault.reason)))
        except Exception:  # noqa: BLE001 - one operator's trouble must not become the engines'
            self._log.exception("operator's request failed")
            self._end("internal", "an error in the daemon: its log says more")

    def _take(self, message: ToDaemon) -> None:
        self._timer.cancel()
        self._timer = self._events.after(IDLE_LIMIT_S, self.close)
        match message:
            case StatusRequest():
                self._answer(self._controls.status())
            case DumpRequest():
                self._answer(self._controls.dump(message.session, message.rounds))
            case Drain():
                self._controls.drain(message.reason, self._log)
                self._stop_reading()
                self._wait(DRAIN_S, lambda: self._controls.at_rest, self._controls.drained)
            case Resume():
                self._answer(Done(text=self._controls.resume(self._log)))
            case Reload():
                self._answer(Done(text=short(self._controls.reload())))
            case SwitchWorker():
                self._switch(message.endpoints)
            case _:
                self._end("order", f"{type(message).__name__} came where an operator's request was due")

    def _switch(self, texts: tuple[str, ...]) -> None:
        workers = self._controls.workers

        def outcome() -> str:
            return f"the worker is {workers.endpoint}{'' if workers.answered else ', which has not answered yet'}"

        try:
            endpoints = checked_endpoints(texts)
            self._log.info("operator switches workers", endpoints=endpoints)
            self._stop_reading()
            workers.switch(
                endpoints, lambda: self._wait(SETTLE_S, lambda: workers.settled, outcome), "an operator's wish"
            )
        except (ValueError, StartError) as fault:
            self._answer(Refused(code="endpoint", reason=printable(str(fault))))
            self._read_on()

    def _wait(self, limit_s: float, settled: Callable[[], bool], outcome: Callable[[], str]) -> None:
        """Answer with the outcome once it is settled, or the time is over."""
        if self._channel.fileno() < 0:
            return
        if not settled() and limit_s > 0:
            self._events.after(TICK_S, lambda: self._wait(limit_s - TICK_S, settled, outcome))
            return
        self._answer(Done(text=outcome()))
        self._read_on()

    def _stop_reading(self) -> None:
        # Until a request is answered nothing more is read: one at a time.
        self._events.forget(self._channel)

    def _read_on(self) -> None:
        if self._channel.fileno() < 0:
            return
        self._events.forget(self._channel)
        try:
            self._events.watch(self._channel, READ, self._ready)
        except OSError as fault:  # it has its answer, and may connect again
            self._log.warning("an operator's connection cannot be watched", reason=fault.strerror)
            self.close()

    def _answer(self, message: ToOperator) -> None:
        try:
            self._channel.send(message)
        except (ChannelClosed, ChannelTimeout) as fault:
            self._log.debug("operator was not told", reason=str(fault))
            self.close()

    def _end(self, code: str, reason: str) -> None:
        self._answer(Refused(code=code, reason=reason))
        self.close()


def short(text: str) -> str:
    """Return what fits a message."""
    printable_text = "".join(letter if letter.isprintable() else " " for letter in text)
    return printable_text if len(text) <= MOST_REASON_LETTERS else printable_text[:MOST_REASON_LETTERS] + "..."


def admit(hello: OperatorHello, peer: Peer, admission: Admission) -> None:
    """Raise RefusedError where this operator is not to be served."""
    if hello.protocol != PROTOCOL_VERSION:
        raise RefusedError(
            "protocol",
            f"this daemon ({VERSION}) speaks protocol {PROTOCOL_VERSION}, not {hello.protocol}: update the older",
        )
    admission.check_operator(peer)
