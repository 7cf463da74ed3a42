# SPDX-License-Identifier: Apache-2.0
"""What is kept because it cannot be taken down: it is taken down once, or stays."""

from __future__ import annotations

import threading

from collections.abc import Callable, Iterator

import pytest

from engine_hand import PATIENCE_S

from engine_shim import StreamStuck, kept
from engine_shim.selftest import release_kept
from engine_shim.selftest.rounds import Stuck


@pytest.fixture(autouse=True)
def _nothing_else() -> Iterator[None]:
    assert not kept._kept
    yield
    kept._kept.clear()


def raising(fault: BaseException) -> Callable[[], None]:
    def close() -> None:
        raise fault

    return close


@pytest.mark.parametrize("fault", [StreamStuck("x"), Stuck("x")])
def test_what_is_stuck_stays_and_so_does_what_comes_after_it(fault: StreamStuck) -> None:
    closed: list[int] = []
    first, second = raising(fault), lambda: closed.append(2)
    kept.keep(first)
    kept.keep(second)
    assert not release_kept()
    assert (kept._kept, closed) == ([first, second], [])


def test_what_was_interrupted_stays() -> None:
    close = raising(KeyboardInterrupt())
    kept.keep(close)
    with pytest.raises(KeyboardInterrupt):
        release_kept()
    assert kept._kept == [close]


def test_two_callers_close_each_once_and_drop_none() -> None:
    inside, go_on = threading.Event(), threading.Event()
    closed: list[int] = []
    found: list[bool] = []

    def first() -> None:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        closed.append(1)

    kept.keep(first)
    kept.keep(lambda: closed.append(2))
    threads = [threading.Thread(target=lambda: found.append(release_kept())) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert inside.wait(PATIENCE_S)
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (closed, found) == ([1, 2], [True, True])
