# SPDX-License-Identifier: Apache-2.0
"""Daemons for a shim: one socket, and for each connection a script that says what the daemon at its other end does."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from engine_hand import PATIENCE_S, Hand, past, until
from engine_native import native

from hostflag import messages as m
from hostflag import region as regions
from hostflag.channel import Channel, ChannelClosed, ChannelTimeout, daemon_end
from hostflag.messages import FromEngine
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict


Script = Callable[["Host"], None]
IDS = (7, 8, 9)


class Host:
    """
    One connection, at the daemon's end.

    ``base``: what ATTACH said, None after CREATE. ``lost_word``: as it was then. ``goodbye``: whether it was said.
    """

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.number = number
        self.channel: Channel[FromEngine] = daemon_end(sock)
        self.over = threading.Event()
        self.base: int | None = None
        self.region_id = ""
        self.lost_word = 0
        self.goodbye = False
        self.hello: m.Hello | None = None
        self.hand: Hand | None = None
        self.answering = threading.Event()
        self.beating = threading.Event()
        self.answering.set()
        self.beating.set()

    @property
    def on_words(self) -> Hand:
        assert self.hand is not None
        return self.hand

    def take_hello(self) -> None:
        message = self.channel.receive(PATIENCE_S).message
        assert isinstance(message, m.Hello)
        self.hello = message

    def welcome(self) -> None:
        session = f"{0x1000 + self.number:016x}"
        self.channel.send(m.Welcome(session=session, pid=os.getpid(), version="test", network_timeout_ms=150.0))

    def take_region(self) -> None:
        """Make a region or adopt one, and map it."""
        wanted = self.channel.receive(PATIENCE_S)
        assert self.hello is not None
        if isinstance(wanted.message, m.Attach):
            fd, self.base = wanted.fds.pop(), wanted.message.base
        else:
            fd = regions.create(self.hello.geometry)
        try:
            self.region_id = regions.check(fd).region_id
            self.hand = Hand(fd)
            self.lost_word = self.hand.word(Word.LOST)
            self.hand.retire(self.base or 0)
            self.hand.phase(Phase.RUNNING)
            if self.base is None:
                self.channel.send(m.Region(bytes=regions.check(fd).bytes), [fd])
        finally:
            os.close(fd)

    def ready(self) -> None:
        self.channel.send(m.Ready(locked=True))

    def shake_hands(self) -> None:
        self.take_hello()
        self.welcome()
        self.take_region()
        self.ready()

    def work(self) -> None:
        """Live until it is over or the engine leaves: beat; where ``answering``, finish every round with IDS. Else it is stopped."""
        hand, t = self.on_words, self.base or 0
        while not self.over.wait(0.0005):
            if not self.beating.is_set():
                continue
            hand.beat()
            if self._said_goodbye():
                return
            following = (t + 1) & 0xFFFF_FFFF
            there = min(past(hand.word(word), following) for word in (Word.GATHERED, Word.SUBMITTED)) >= 0
            if there and self.answering.is_set():
                t = following
                requests = hand.context_only(t)
                hand.finish(t, Verdict.OK, () if requests else IDS * 4)

    def _said_goodbye(self) -> bool:
        try:
            self.goodbye = isinstance(self.channel.receive(0).message, m.Goodbye)
        except ChannelTimeout:
            return False
        return self.goodbye

    def serve(self) -> None:
        self.shake_hands()
        self.work()

    def stop(self) -> None:
        """As SIGSTOP does: nothing moves, everything stays open."""
        self.answering.clear()
        self.beating.clear()

    def die(self) -> None:
        """As SIGKILL does: all of it is gone, the socket last."""
        self.over.set()

    def say(self, payload: bytes) -> None:
        self.channel.socket.send(payload)


def serving(host: Host) -> None:
    """Be a daemon as it should be."""
    host.serve()


def silent(host: Host) -> None:
    """Take the connection and say nothing."""
    host.over.wait(PATIENCE_S)


class Daemons:
    """Whoever connects gets the next script; the last one serves all that follow."""

    def __init__(self, path: Path, scripts: Sequence[Script] = (serving,)) -> None:
        native()  # compiled now, not while an engine waits for its region
        self.path = path
        self.hosts: list[Host] = []
        self._scripts = list(scripts)
        self._faults: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(64)

    def __enter__(self) -> Daemons:
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(PATIENCE_S)
        self._listener.close()
        for host in self.hosts:
            host.die()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self.path.unlink()
        if kind is None:
            assert self._faults == []

    def host(self, number: int) -> Host:
        """Return the host of the ``number``-th connection, 0 the first, once it is there."""
        until(lambda: len(self.hosts) > number, f"connection {number}")
        return self.hosts[number]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            number = len(self.hosts)
            host = Host(sock, number)
            self.hosts.append(host)
            script = self._scripts[min(number, len(self._scripts) - 1)]
            thread = threading.Thread(target=self._run, args=(script, host))
            self._threads.append(thread)
            thread.start()

    def _run(self, script: Script, host: Host) -> None:
        try:
            # An engine that went away is no fault of the script.
            with contextlib.suppress(ChannelClosed, ChannelTimeout):
                script(host)
        except BaseException as fault:  # noqa: BLE001 - raised at the end, in the test's own thread
            self._faults.append(fault)
        finally:
            if host.hand is not None:
                host.hand.close()
            host.channel.close()
