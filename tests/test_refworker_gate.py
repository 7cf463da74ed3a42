# SPDX-License-Identifier: Apache-2.0
"""The worker's gate looks at descriptors that are libzmq's: whatever they have become, it keeps none, and its start says why it fails."""

from __future__ import annotations

import os
import socket
import threading

from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from refworker.gate import Gate, received_bytes


def held() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def a_closed_one() -> int:
    fd = os.eventfd(0)
    os.close(fd)
    return fd


def a_socket_without_a_connection() -> int:
    return socket.socket(socket.AF_UNIX).detach()


@pytest.mark.parametrize("become", [lambda: os.eventfd(0), a_socket_without_a_connection, a_closed_one])
def test_a_number_that_is_no_connection_any_more_costs_no_descriptor(become: Callable[[], int]) -> None:
    fd = become()
    before = held()
    assert [received_bytes(fd) for _ in range(5)] == [None] * 5
    assert held() == before
    if become is not a_closed_one:
        os.close(fd)


def test_without_a_thread_for_it_nothing_is_left_and_it_is_an_oserror(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = held()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    monkeypatch.setattr(threading.Thread, "start", none)
    with pytest.raises(OSError, match="can't start new thread"), Gate(context, router, None):
        pass
    router.close(linger=0)
    context.term()
    assert held() == before
