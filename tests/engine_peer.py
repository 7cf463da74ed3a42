# SPDX-License-Identifier: Apache-2.0
"""A daemon's end of one connection, for tests of what an engine does with whatever comes from there."""

from __future__ import annotations

import contextlib
import socket
import threading

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from engine_harness import PATIENCE_S, SMALL

from engine_shim import Session, SoftStream, connect
from hostflag import messages as m
from hostflag.channel import Channel, daemon_end
from hostflag.messages import EngineIdentity, FromEngine, Geometry


WELCOME: Final = m.Welcome(session=f"{7:016x}", pid=1, version="test", network_timeout_ms=150.0)
Script = Callable[["Peer"], None]


class Peer:
    """A daemon's end of a connection, for scripts."""

    def __init__(self, sock: socket.socket, over: threading.Event) -> None:
        self.channel: Channel[FromEngine] = daemon_end(sock)
        self._over = over

    def hello(self) -> m.Hello:
        message = self.channel.receive(PATIENCE_S).message
        assert isinstance(message, m.Hello)
        return message

    def asked_for_region(self) -> m.Hello:
        hello = self.hello()
        self.channel.send(WELCOME)
        assert isinstance(self.channel.receive(PATIENCE_S).message, m.Create)
        return hello

    def send_region(self, *fds: int) -> None:
        self.channel.send(m.Region(bytes=4096), list(fds))

    def raw(self, payload: bytes) -> None:
        self.channel.socket.send(payload)

    def stay(self) -> None:
        """Say nothing until the test is over."""
        self._over.wait(PATIENCE_S)


@contextlib.contextmanager
def daemon(directory: Path, script: Script) -> Iterator[Path]:
    """Serve one connection by a script, in a thread."""
    path = directory / "e.sock"
    over = threading.Event()
    faults: list[BaseException] = []

    def serve() -> None:
        sock, _ = listener.accept()
        peer = Peer(sock, over)
        try:
            script(peer)
        except BaseException as fault:  # noqa: BLE001 - raised below, in the test's own thread
            faults.append(fault)
        finally:
            peer.channel.close()

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(1)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            over.set()
            thread.join(PATIENCE_S)
    assert faults == []


def attempt(path: Path, timeout_s: float = PATIENCE_S, geometry: Geometry = SMALL) -> Session:
    """Connect, and check that a failure leaves no thread and no map."""
    with SoftStream() as stream:
        before = held()
        try:
            return connect(
                path,
                geometry=geometry,
                model="test",
                engine=EngineIdentity(name="e"),
                stream=stream,
                timeout_s=timeout_s,
            )
        finally:
            assert held() == before


def held() -> tuple[int, int]:
    """Return how many C threads and mapped regions this process has; descriptors are the module's fixture's business."""
    threads = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            threads.append(task.joinpath("comm").read_text())
    maps = Path("/proc/self/maps").read_text().count("memfd:dsv41-region")
    return sum(name.startswith("hf-") for name in threads), maps
