# SPDX-License-Identifier: Apache-2.0
"""The metrics server: what it answers, and that no client hurts another."""

from __future__ import annotations

import socket
import threading
import time

from collections.abc import Iterator
from pathlib import Path

import pytest

from proxyd_harness import raised

from proxyd.service.events import READ, Events
from proxyd.views import http
from proxyd.views.http import MAX_CLIENTS, MAX_REQUEST_BYTES, Content, HttpServer


BIG = b"x" * 16_000_000  # more than a connection buffers whose reader allows little


class Running:
    """The server and its events in a thread of their own."""

    def __init__(self) -> None:
        self.faults: list[Exception] = []
        self.served = 0
        self.events = Events(raised)
        listening = http.bind("127.0.0.1", 0)
        self.address: tuple[str, int] = listening.getsockname()
        pages = {
            "/metrics": lambda: Content("text/plain", b"one 1\n"),
            "/big": self._big,
            "/broken": lambda: Content("text/plain", b"%d" % (1 // 0)),
        }
        self.server = HttpServer(self.events, listening, pages, self.faults.append)
        self._stop, self._wake = socket.socketpair()
        self._stopped = False
        self.events.watch(self._stop, READ, self._end)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._wake.send(b"x")
        self._thread.join()
        self.server.close()
        self.events.close()
        self._stop.close()
        self._wake.close()

    def ask(self, request: bytes) -> bytes:
        with self.connect() as client:
            client.sendall(request)
            return read_all(client)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=30)

    def connect_narrow(self) -> socket.socket:
        """Connect with a small receive buffer: what is not read soon stays with the server."""
        client = socket.socket()
        client.settimeout(30)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(self.address)
        return client

    def _run(self) -> None:
        while not self._stopped:
            self.events.turn()

    def _big(self) -> Content:
        self.served += 1
        return Content("text/plain", BIG)

    def _end(self) -> None:
        self._stopped = True


def open_fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def read_all(client: socket.socket) -> bytes:
    pieces = []
    while piece := client.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.fixture
def running() -> Iterator[Running]:
    server = Running()
    yield server
    server.close()


def test_get(running: Running) -> None:
    head, _, body = running.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 6" in head
    assert body == b"one 1\n"


def test_head_has_no_body(running: Running) -> None:
    head, _, body = running.ask(b"HEAD /metrics?x=1 HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"Content-Length: 6" in head
    assert body == b""


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/ HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"\xff\xfe\r\n\r\n", b"400"),
        (b"GET\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"GET /" + b"x" * MAX_REQUEST_BYTES, b"431"),
        (b"GET /broken HTTP/1.1\r\n\r\n", b"500"),
    ],
)
def test_other_requests(running: Running, request_head: bytes, status: bytes) -> None:
    assert running.ask(request_head).split(b" ")[1] == status


def test_a_page_that_fails_is_reported(running: Running) -> None:
    running.ask(b"GET /broken HTTP/1.1\r\n\r\n")
    assert [type(fault) for fault in running.faults] == [ZeroDivisionError]


def test_a_large_page_arrives_whole_at_a_slow_reader(running: Running) -> None:
    with running.connect_narrow() as slow:
        slow.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        assert running.ask(b"GET /metrics HTTP/1.1\r\n\r\n").endswith(b"one 1\n")
        assert read_all(slow).endswith(BIG)


def test_silent_clients_are_bounded_and_do_not_keep_others_out(running: Running) -> None:
    before = open_fds()
    silent = [running.connect() for _ in range(100)]
    try:
        assert running.ask(b"GET /metrics HTTP/1.1\r\n\r\n").endswith(b"one 1\n")
        assert open_fds() - before - len(silent) <= MAX_CLIENTS
    finally:
        for client in silent:
            client.close()


def test_a_silent_client_is_dropped(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_TIMEOUT_S", 0.05)
    with running.connect() as silent:
        silent.sendall(b"GET /met")
        assert silent.recv(1) == b""


def test_a_client_that_never_reads_is_dropped(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "RESPONSE_TIMEOUT_S", 0.05)
    with running.connect_narrow() as stuck:
        stuck.sendall(b"GET /big HTTP/1.1\r\n\r\n")
        while running.served < 1 or running.server.clients:
            time.sleep(0.01)
        assert not read_all(stuck).endswith(BIG)


def test_the_request_may_come_in_pieces(running: Running) -> None:
    with running.connect() as client:
        for piece in (b"GET /met", b"rics HTTP/1.1\r\n", b"\r\n"):
            client.sendall(piece)
        assert read_all(client).endswith(b"one 1\n")
