# SPDX-License-Identifier: Apache-2.0
"""sd_notify by itself: what is sent, what waits, what is dropped; pings for beats."""

from __future__ import annotations

import os

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from notify_manager import Manager
from proxyd_harness import raised

from proxyd.service.events import Events
from proxyd.service.notify import MAX_WAITING, Notifier
from proxyd.service.supervision import Supervision
from proxyd.sessions.roster import Roster
from proxyd.views.standing import Standing


@pytest.fixture
def manager(short_dir: Path) -> Iterator[Manager]:
    with Manager(f"{short_dir}/notify") as made:
        yield made


def test_nothing_is_handed_on() -> None:
    environment = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    Notifier.take(environment).close()
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("value", ["", "0", "-1", "1e3", "nonsense", "٣"])
def test_a_watchdog_time_that_is_none(value: str) -> None:
    notifier = Notifier.take({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": value})
    assert notifier.watchdog_s is None
    notifier.close()


def test_without_a_manager_nothing_happens() -> None:
    notifier = Notifier.take({"WATCHDOG_USEC": "1000000"})
    notifier.ready("a")
    notifier.status("b")
    notifier.ping()
    assert (notifier.watchdog_s, notifier.waiting, notifier.full) == (None, False, 0)


def test_a_status_is_one_line_of_ascii(manager: Manager) -> None:
    """What sdnotify loses: Latin-1 cannot say it, so the whole message, READY too, would be dropped in silence."""
    notifier = Notifier(manager.address)
    notifier.ready("worker \u2014 down\nREADY=0\x00" + "x" * 5000)
    first, second = manager.next().split("\n")
    assert first == "READY=1"
    assert second.startswith("STATUS=worker \\u2014 down READY=0 xxx")
    assert len(second) < 300
    notifier.close()


def test_what_found_no_room_is_kept_in_order_and_bounded(manager: Manager) -> None:
    notifier = Notifier(manager.address)
    while not notifier.full:
        notifier.ping()
    notifier.reloading()
    notifier.ready("reloaded")
    for number in range(100):
        notifier.status(f"number {number}")
    notifier.stopping("the end")
    assert set(manager.all_there()) == {"WATCHDOG=1"}
    notifier.flush()
    messages = manager.all_there()
    assert [message.split("\n")[0] for message in messages] == [
        "RELOADING=1",
        "READY=1",
        "STATUS=number 99",
        "STOPPING=1",
    ]
    while not notifier.waiting:
        notifier.reloading()
    for _ in range(10 * MAX_WAITING):
        notifier.reloading()
    manager.all_there()
    notifier.flush()
    assert 0 < len(manager.all_there()) <= MAX_WAITING
    notifier.close()


class StandIn:
    """A roster of one session, whose loop beats when the test says so."""

    def __init__(self) -> None:
        self.number, self.count, self.over = 1, 0, False
        self.loop = self

    def all(self) -> list[StandIn]:
        return [self]

    def beats(self) -> int:
        return self.count

    def stopped(self) -> bool:
        return self.over

    def line(self) -> str:
        return "as ever"


def test_no_ping_without_a_beat(short_dir: Path) -> None:
    with Manager(f"{short_dir}/notify") as manager:
        events, roster = Events(raised), StandIn()
        stand_in: Any = roster
        supervision = Supervision(
            events, Notifier(manager.address, 0.04), cast("Roster", stand_in), cast("Standing", stand_in)
        )
        assert manager.all_there() == ["READY=1\nSTATUS=as ever", "WATCHDOG=1"]
        for _ in range(10):
            events.turn()
        assert manager.all_there() == []
        roster.count += 1
        events.turn()
        assert manager.all_there() == ["WATCHDOG=1"]
        roster.over = True  # a loop that has ended beats no more, and holds no ping up
        events.turn()
        assert manager.all_there() == ["WATCHDOG=1"]
        supervision.close()
        events.close()
