# SPDX-License-Identifier: Apache-2.0
"""When a session gets its next link: without sockets, a loop's thread, or time that passes by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from proxyd_clock import Clock

from proxyd.links.addresses import Address
from proxyd.links.linkkeeper import NAMELESS_S, TURN_S, LinkKeeper
from proxyd.sessions.roundloop import EventKind, LinkState, LoopEvent


ENDPOINT = "tcp://w:1"
NOWHERE = Address("tcp://10.0.0.1:1", name="w", host="10.0.0.1")


class Given:
    """A link, which needs no warming."""

    connected = True

    def __init__(self, tag: int, address: Address | None) -> None:
        self.tag = tag
        self.endpoint = ENDPOINT
        self.address = address
        self.unresolved = "" if address else "the name w is not resolved: no answer yet"

    def give(self, _loop: Any, _opening: bytes) -> None: ...

    def close(self) -> None: ...


class Session:
    """A keeper, with a loop that has what ``state`` says."""

    def __init__(self, address: Address | None) -> None:
        self.clock = Clock()
        self.state = LinkState.NONE
        self.made: list[Given] = []
        self._address = address
        workers: Any = SimpleNamespace(
            endpoint=ENDPOINT, make=self._make, follow=self._nothing, served=self._nothing, trouble=self._nothing
        )
        loop: Any = SimpleNamespace(link_state=lambda: self.state)
        log = SimpleNamespace(info=self._nothing, warning=self._nothing, error=self._nothing)
        events: Any = self.clock
        self.keeper = LinkKeeper(events, workers, loop, opening=b"", max_bytes=1, log=log, rate_key="x")

    def say(self, kind: EventKind, tag: int) -> None:
        self.keeper.take(LoopEvent(kind, tag, b"{}", ""))

    def _make(self, _max_bytes: int, _turn: Any) -> Given:
        self.made.append(Given(len(self.made) + 1, self._address))
        return self.made[-1]

    def _nothing(self, *_: Any, **__: Any) -> None: ...


@pytest.mark.parametrize("address", [None, NOWHERE], ids=["no address", "nobody there"])
@pytest.mark.parametrize("before", [LinkState.UP, LinkState.OPENING])
def test_a_link_that_is_taken_late_and_leads_nowhere_is_followed_by_another(
    address: Address | None, before: LinkState
) -> None:
    """The loop takes no link while a round is in flight, and says nothing of one that does not connect."""
    session = Session(address)
    session.keeper.start()
    session.state = before
    session.keeper.move()
    session.clock.pass_time(0.0)
    assert len(session.made) == 2
    session.say(EventKind.LINK_UP, 1)  # said before, met only now: it is no word about the second one
    session.clock.pass_time(60.0)
    assert len(session.made) == 2, "the loop has not taken the one before"
    session.state = LinkState.CONNECTING
    session.say(EventKind.LINK_RETURNED, 1)
    session.clock.pass_time(NAMELESS_S + TURN_S)
    assert len(session.made) > 2


def test_a_link_that_is_up_stays() -> None:
    session = Session(NOWHERE)
    session.keeper.start()
    session.state = LinkState.UP
    session.say(EventKind.LINK_UP, 1)
    session.clock.pass_time(60.0)
    assert len(session.made) == 1
    assert session.clock.due() == []
