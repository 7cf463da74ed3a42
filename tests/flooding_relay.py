# SPDX-License-Identifier: Apache-2.0
"""A TCP relay between a daemon and its worker that can turn on one of its connections: it then sends the daemon endless parts."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

from zmtp_peer import frame


class Relay:
    """Relays ``endpoint`` to the worker at ``port``; ``flood`` names the connection, in order of arrival, that is flooded."""

    def __init__(self, port: int) -> None:
        self.flood: int | None = None
        self.flooded = 0  # bytes
        self.ended = threading.Event()  # the daemon has hung up on it
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._accepted: list[socket.socket] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _run(self) -> None:
        parts = frame(b"", more=True) * 16_384
        while not self._stop.is_set():
            for key, _ in self._selector.select(0 if self.flood is not None else 0.02):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._carry(key.fileobj, key.data)
            if self.flood is not None:
                self._send(self._accepted[self.flood], parts)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._port))
        self._accepted.append(near)
        for one, other in ((near, far), (far, near)):
            self._selector.register(one, selectors.EVENT_READ, other)

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = one.recv(65536)
            if data:
                other.sendall(data)
                return
        for end in (one, other):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
            end.close()

    def _send(self, near: socket.socket, data: bytes) -> None:
        try:
            near.settimeout(0.001)
            # A part is two bytes: what is cut off in the middle goes on with the other half.
            self.flooded += near.send(data[self.flooded % 2 :])
        except TimeoutError:
            return
        except OSError:
            self.flood = None
            self.ended.set()
