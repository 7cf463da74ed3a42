# SPDX-License-Identifier: Apache-2.0
"""
A small HTTP server for /metrics and /healthz: GET and HEAD, one request a connection, no thread.

It is bounded: so many clients, so many request bytes, so many seconds. Where there are too many clients the oldest has to go, so that
silent ones cannot keep a scraper out.
"""

from __future__ import annotations

import socket

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from proxyd.service.events import READ, WRITE, Events
from proxyd.service.listener import Listener


MAX_CLIENTS: Final = 32
MAX_REQUEST_BYTES: Final = 8192
MAX_DISCARD_BYTES: Final = 65_536
REQUEST_TIMEOUT_S: Final = 2.0
RESPONSE_TIMEOUT_S: Final = 5.0


class Content(NamedTuple):
    """What a page says."""

    content_type: str
    body: bytes
    status: HTTPStatus = HTTPStatus.OK


Page = Callable[[], Content]


class HttpServer:
    """
    Serves ``pages`` by exact path on a bound ``listening`` socket.

    A page that raises is a 500 for its client; ``on_fault`` gets the exception.
    """

    def __init__(
        self, events: Events, listening: socket.socket, pages: Mapping[str, Page], on_fault: Callable[[Exception], None]
    ) -> None:
        self.events = events
        self._pages = pages
        self._on_fault = on_fault
        self._clients: dict[_Client, None] = {}  # in order of arrival
        self._listener = Listener(events, listening, self._welcome, on_fault)

    def close(self) -> None:
        self._listener.close()
        for client in list(self._clients):
            client.close()

    @property
    def clients(self) -> int:
        """How many are connected."""
        return len(self._clients)

    def respond(self, request: bytes) -> bytes:
        """Returns the whole response to a request's head."""
        try:
            method, target, version = request.split(b"\r\n", 1)[0].decode("ascii").split(" ")
        except ValueError:
            return _response(HTTPStatus.BAD_REQUEST)
        if not version.startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST)
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, extra="Allow: GET, HEAD\r\n")
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return _response(HTTPStatus.NOT_FOUND, head=method == "HEAD")
        try:
            content = page()
        except Exception as fault:  # noqa: BLE001 - whatever it was, its client gets a 500 and the log the fault
            self._on_fault(fault)
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, head=method == "HEAD")
        return _response(content.status, content.content_type, content.body, head=method == "HEAD")

    def forget(self, client: _Client) -> None:
        self._clients.pop(client, None)

    def _welcome(self, connection: socket.socket) -> None:
        if len(self._clients) >= MAX_CLIENTS:
            next(iter(self._clients)).close()
        self._clients[_Client(self, connection)] = None


class _Client:
    """One connection: reads a request, writes the response, waits for the peer to close."""

    def __init__(self, server: HttpServer, connection: socket.socket) -> None:
        self._server = server
        self._connection = connection
        self._request = bytearray()
        self._response = memoryview(b"")
        self._discarded = 0
        self._step = self._read
        server.events.watch(connection, READ, self._ready)  # first: where it fails, nothing is to come of this client
        self._timer = server.events.after(REQUEST_TIMEOUT_S, self.close)

    def close(self) -> None:
        self._timer.cancel()
        self._server.events.forget(self._connection)
        self._connection.close()
        self._server.forget(self)

    def _ready(self) -> None:
        try:
            self._step()
        except BlockingIOError:
            return
        except OSError:
            self.close()  # the peer went away, which is its right

    def _read(self) -> None:
        piece = self._connection.recv(MAX_REQUEST_BYTES)
        if not piece:
            self.close()
            return
        self._request += piece
        if b"\r\n\r\n" in self._request:
            self._answer(self._server.respond(bytes(self._request)))
        elif len(self._request) >= MAX_REQUEST_BYTES:
            self._answer(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))

    def _answer(self, response: bytes) -> None:
        self._timer.cancel()
        self._timer = self._server.events.after(RESPONSE_TIMEOUT_S, self.close)
        self._response = memoryview(response)
        self._step = self._write
        self._server.events.change(self._connection, WRITE)
        self._write()

    def _write(self) -> None:
        self._response = self._response[self._connection.send(self._response) :]
        if not self._response:
            # A close with input unread would reset the connection, and the peer could lose the response.
            self._connection.shutdown(socket.SHUT_WR)
            self._step = self._discard
            self._server.events.change(self._connection, READ)

    def _discard(self) -> None:
        piece = self._connection.recv(MAX_REQUEST_BYTES)
        self._discarded += len(piece)
        if not piece or self._discarded > MAX_DISCARD_BYTES:
            self.close()


def bind(host: str, port: int) -> socket.socket:
    """Returns a bound TCP socket. Raises OSError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError:
        listening.close()
        raise
    return listening


def _response(
    status: HTTPStatus,
    content_type: str = "text/plain; charset=utf-8",
    body: bytes | None = None,
    *,
    head: bool = False,
    extra: str = "",
) -> bytes:
    if body is None:
        body = f"{status.value} {status.phrase}\n".encode()
    top = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
    )
    return top.encode("ascii") + (b"" if head else body)
