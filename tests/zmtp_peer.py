# SPDX-License-Identifier: Apache-2.0
"""A peer that speaks ZMTP 3.0 over a plain TCP socket: it can send what no ZMQ library would."""

from __future__ import annotations

import socket
import struct

from pathlib import Path
from typing import Final

from fake_engine import PATIENCE_S


MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
SHORT_BYTES: Final = 255
_GREETING: Final = b"\xff" + bytes(8) + b"\x7f" + bytes([3, 0]) + b"NULL".ljust(20, b"\0") + bytes(32)


def frame(data: bytes, *, more: bool = False) -> bytes:
    """Return one part of a message as bytes on the wire."""
    flags = MORE if more else 0
    if len(data) > SHORT_BYTES:
        return struct.pack(">BQ", flags | LONG, len(data)) + data
    return struct.pack(">BB", flags, len(data)) + data


class ZmtpPeer:
    """A ROUTER of sorts that listens on ``endpoint``, a Unix socket where it is given a path, and takes one connection."""

    def __init__(self, path: Path | None = None) -> None:
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(path))
            self._listener.listen(1)
            self.endpoint = f"ipc://{path}"
        self._listener.settimeout(PATIENCE_S)
        self.socket: socket.socket | None = None

    def __enter__(self) -> ZmtpPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        if self.socket is not None:
            self.socket.close()

    def accept(self) -> socket.socket:
        """Take a connection; nothing is said on it yet."""
        self.socket, _ = self._listener.accept()
        self.socket.settimeout(PATIENCE_S)
        return self.socket

    def handshake(self) -> list[bytes]:
        """Take a connection, do ZMTP's handshake, return the first message. Connections that are given up are passed over."""
        while True:
            connection = self.accept()
            try:
                connection.sendall(_GREETING)
                self._exactly(len(_GREETING))
                ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"ROUTER"
                connection.sendall(struct.pack(">BB", COMMAND, len(ready)) + ready)
                return self.receive()
            except ConnectionError:
                connection.close()

    def receive(self) -> list[bytes]:
        """Return the next message."""
        parts = []
        while True:
            flags, data = self._frame()
            if flags & COMMAND:
                continue
            parts.append(data)
            if not flags & MORE:
                return parts

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        assert self.socket is not None
        self.socket.sendall(data)

    def _frame(self) -> tuple[int, bytes]:
        flags = self._exactly(1)[0]
        size = int.from_bytes(self._exactly(8 if flags & LONG else 1), "big")
        return flags, self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        assert self.socket is not None
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionResetError("the connection is over")
            data += more
        return data
