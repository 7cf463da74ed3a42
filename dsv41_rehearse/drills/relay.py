# SPDX-License-Identifier: Apache-2.0
"""
A relay between daemon and worker, a process of its own, that does to the worker's replies what it is told.

What the worker says passes through, frame by frame, until a deed is asked for: then so many replies are not what they were.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time

from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, final

from dsv41_rehearse.drills.misdeeds import Deed, done_to, session_of, type_of
from dsv41_rehearse.drills.zmtp import Frame, Frames, frame, head
from dsv41_rehearse.stack import Child, Stack
from hostflag.wire import Kind


HUGE_BYTES: Final = 1 << 30
_CHUNK: Final = 1 << 16
_WORDS: Final = ("deed", "count", "session", "done", "sent_bytes", "began_ns", "hung_up_ns")
_ENDLESS: Final = frame(b"", more=True) * (_CHUNK // 2)


@final
class Board:
    """What drill and relay show each other: a file that both map. ``count``: how many replies are yet to be dealt with."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8 * len(_WORDS)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * len(_WORDS))

    def get(self, word: str) -> int:
        """Return a word."""
        return int(struct.unpack_from("=Q", self._map, 8 * _WORDS.index(word))[0])

    def set(self, **words: int) -> None:
        """Set words, in this order."""
        for word, value in words.items():
            struct.pack_into("=Q", self._map, 8 * _WORDS.index(word), value)


class Relay:
    """The drill's side: the relay's process, once it listens. ``endpoint``: for daemons."""

    def __init__(self, stack: Stack, worker: str, *, name: str = "relay") -> None:
        path = stack.directory / f"{name}.board"
        self.board = Board(path)
        self.child: Child = stack.start(name, "dsv41_rehearse.drills.relay", [str(path), worker.rpartition(":")[2]])
        self.endpoint = str(self.child.ready()["endpoint"])

    def ask(self, deed: Deed, count: int = 1, session: int = 0) -> None:
        """Have the next ``count`` replies dealt with (of that session, 0: of any)."""
        self.board.set(count=0)
        self.board.set(deed=deed, session=session, done=0, sent_bytes=0, began_ns=0, hung_up_ns=0)
        self.board.set(count=count)

    @property
    def done(self) -> int:
        """How many replies were dealt with since it was asked."""
        return self.board.get("done")


class _Connection:
    """One connection of a daemon's and the one to the worker that goes with it; a thread for each way."""

    def __init__(self, near: socket.socket, far: socket.socket, server: _Server) -> None:
        self._near, self._far, self._server = near, far, server
        for run in (self._to_worker, self._to_daemon):
            threading.Thread(target=self._over, args=(run,), daemon=True).start()

    def _over(self, run: Any) -> None:
        with contextlib.suppress(OSError):
            run()
        for end in (self._near, self._far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _to_worker(self) -> None:
        while data := self._near.recv(_CHUNK):
            self._far.sendall(data)

    def _to_daemon(self) -> None:
        frames = Frames()
        while data := self._far.recv(_CHUNK):
            for one in frames.feed(data):
                self._pass(one)

    def _pass(self, one: Frame) -> None:
        if not one.plain or type_of(one.body) != Kind.REPLY:
            self._near.sendall(one.wire)
            return
        session = session_of(one.body)
        if late := self._server.take_late(session, self):
            self._near.sendall(late)
        deed = self._server.take(session)
        if deed is Deed.NONE:
            self._near.sendall(one.wire)
        elif deed is Deed.LATE:
            self._server.hold(session, self, one.wire)
        elif deed >= Deed.HUGE:
            self._without_end(deed, one)
        else:
            self._near.sendall(frame(done_to(one.body, deed)))

    def _without_end(self, deed: Deed, one: Frame) -> None:
        board, sent = self._server.board, 0
        stale = frame(done_to(one.body, Deed.OTHER_ROUND)) * max(1, _CHUNK // len(one.wire))
        first, more = {
            Deed.HUGE: (head(HUGE_BYTES), bytes(_CHUNK)), Deed.ENDLESS: (b"", _ENDLESS), Deed.SPAM: (b"", stale),
        }[deed]  # fmt: skip
        board.set(began_ns=time.monotonic_ns())
        try:
            self._near.sendall(first)
            while board.get("deed") == deed:
                # All of it: what is cut off in the middle would be another message.
                self._near.sendall(more)
                sent += len(more)
                board.set(sent_bytes=sent)
        except OSError:
            board.set(hung_up_ns=time.monotonic_ns())
            raise


class _Server:
    def __init__(self, board: Board, port: int) -> None:
        self.board, self._port = board, port
        self._lock = threading.Lock()
        self._late: dict[int, tuple[_Connection, bytes]] = {}

    def take(self, session: int) -> Deed:
        """Return what is to be done to this reply."""
        with self._lock:
            count, wanted = self.board.get("count"), self.board.get("session")
            if not count or wanted not in {0, session}:
                return Deed.NONE
            self.board.set(count=count - 1, done=self.board.get("done") + 1)
            return Deed(self.board.get("deed"))

    def hold(self, session: int, by: _Connection, wire: bytes) -> None:
        with self._lock:
            self._late[session] = by, wire

    def take_late(self, session: int, by: _Connection) -> bytes | None:
        """Return what was held back of this session, on another connection than this one."""
        with self._lock:
            held = self._late.get(session)
            if held is None or held[0] is by:
                return None
            del self._late[session]
            return held[1]

    def run(self, listener: socket.socket) -> None:
        while True:
            near, _ = listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Connection(near, far, self)


def main() -> None:
    """``BOARD PORT``: relay to the worker at that port of this machine until SIGTERM."""
    path, port = sys.argv[1:]
    # What floods one connection must not keep the interpreter from the others.
    sys.setswitchinterval(0.0002)
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    now = datetime.now(timezone.utc).isoformat()
    sys.stderr.write(json.dumps({"event": "ready", "timestamp": now, "endpoint": endpoint}) + "\n")
    _Server(Board(Path(path)), int(port)).run(listener)


if __name__ == "__main__":
    main()
