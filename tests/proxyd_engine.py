# SPDX-License-Identifier: Apache-2.0
"""An engine made of bare messages and words, for tests of the daemon's behaviour at its socket."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import select
import socket
import struct
import time

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from proxyd_harness import PATIENCE_S, Daemon, until

from hostflag import geometry as geometries
from hostflag import messages as m
from hostflag._hostflag import ffi, lib
from hostflag.channel import Channel, ChannelClosed, ChannelTimeout, Received, engine_end
from hostflag.messages import FromDaemon, Geometry
from hostflag.region import View, Word
from hostflag.verdicts import Verdict


GEOMETRY: Final = Geometry(
    slots=4, max_requests=4, state_slots=8, row_bytes=1024, drafts=5, vocab=256, window=16, ring_bytes=1 << 20
)
_FUTEX: Final = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_FUTEX_WAKE: Final = 1


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(PATIENCE_S)
    try:
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def hello(**changes: Any) -> m.Hello:
    fields: dict[str, Any] = {
        "protocol": m.PROTOCOL_VERSION,
        "layout_hash": geometries.layout_hash(),
        "geometry": GEOMETRY,
        "deadline_ms": 200.0,
        "model": "test",
        "engine": m.EngineIdentity(name="engine", rank=0, pid=os.getpid()),
    }
    return m.Hello(**{**fields, **changes})


class Engine:
    """An engine at the socket. After ``ready`` it has a region and can do rounds by hand."""

    def __init__(self, path: Path) -> None:
        self.channel: Channel[FromDaemon] = engine_end(connect(path))
        self.region_fd = -1
        self.session = 0
        self._map: mmap.mmap | None = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.channel.close()
        if self._map is not None:
            self._map.close()
            self._map = None
        if self.region_fd >= 0:
            os.close(self.region_fd)
            self.region_fd = -1

    def ask(self, message: m.Message, fds: list[int] | None = None) -> FromDaemon:
        self.channel.send(message, fds or [])
        return self.receive()

    def receive(self) -> FromDaemon:
        received: Received[FromDaemon] = self.channel.receive(PATIENCE_S)
        if received.fds:
            self.region_fd = received.fds.pop()
        received.close_fds()
        return received.message

    def ready(self, name: str = "engine", geometry: Geometry = GEOMETRY) -> Engine:
        """Do the whole handshake."""
        identity = m.EngineIdentity(name=name, pid=os.getpid())
        welcome = self.ask(hello(engine=identity, geometry=geometry, deadline_ms=60_000.0))
        assert isinstance(welcome, m.Welcome), welcome
        self.session = int(welcome.session, 16)
        assert isinstance(self.ask(m.Create()), m.Region)
        assert isinstance(self.receive(), m.Ready)
        self.geometry = geometry
        return self

    def word(self, word: Word) -> int:
        with View(self.region_fd) as view:
            return view.word(word)

    def verdict(self, t: int) -> Verdict:
        """Return a round's verdict."""
        with View(self.region_fd) as view:
            owner, verdict = view.verdict(t % self.geometry.slots)
        assert owner == t
        return Verdict(verdict)

    def attach(self, fd: int, base: int, name: str = "engine") -> FromDaemon:
        """Do the handshake with a region of the engine's own, which this takes; return the answer to ATTACH."""
        welcome = self.ask(hello(engine=m.EngineIdentity(name=name, pid=os.getpid()), deadline_ms=60_000.0))
        assert isinstance(welcome, m.Welcome), welcome
        self.session, self.geometry, self.region_fd = int(welcome.session, 16), GEOMETRY, fd
        return self.ask(m.Attach(base=base), [fd])

    def set_words(self, **values: int) -> None:
        """Store words by name: submitted, gathered, consumed, lost; released, which both sides write."""
        layout = ffi.new("struct hf_layout *")
        assert lib.hf_layout_of(geometries.to_c(self.geometry), layout) == 0
        for name, value in values.items():
            at = layout.shared_words if name == "released" else layout.engine_words
            number = 0 if name == "released" else ("submitted", "gathered", "consumed", "lost").index(name)
            struct.pack_into("<I", self._mapped(), at + number * lib.HF_LINE, value)

    def submit(self, t: int) -> None:
        """Submit and gather round t: one request without rows that wants drafts after token 7."""
        layout = ffi.new("struct hf_layout *")
        assert lib.hf_layout_of(geometries.to_c(self.geometry), layout) == 0
        whole = self._mapped()
        slot = layout.slots + t % self.geometry.slots * layout.slot_stride
        number = {"round": t, "session": self.session, "n_requests": 1, "submitted_ns": time.monotonic_ns()}
        header = bytes(ffi.buffer(ffi.new("struct hf_round *", number)))
        request = bytes(ffi.buffer(ffi.new("struct hf_request *", {"flags": lib.HF_REQUEST_DRAFT})))
        whole[slot : slot + len(header) + len(request)] = header + request
        for array, code, value in (
            (layout.num_sampled, "<i", 1),
            (layout.num_rejected, "<i", 0),
            (layout.last_sampled, "<q", 7),
            (layout.next_prefill, "<i", 0),
        ):
            struct.pack_into(code, whole, slot + array, value)
        words = layout.engine_words
        verdict = layout.shared_words + lib.HF_LINE * (1 + t % self.geometry.slots)
        struct.pack_into("<Q", whole, verdict, t << 32 | Verdict.OPEN)
        struct.pack_into("<I", whole, words + lib.HF_LINE, t)  # gathered
        struct.pack_into("<I", whole, words, t)  # submitted
        self._ring(whole, words)

    @staticmethod
    def _ring(whole: mmap.mmap, word: int) -> None:
        with ffi.from_buffer(whole, require_writable=True) as start:
            at = ctypes.c_void_p(int(ffi.cast("uintptr_t", start)) + word)
            ctypes.CDLL(None).syscall(_FUTEX, at, _FUTEX_WAKE, 1, None, None, 0)

    def finish(self, t: int) -> Verdict:
        """Wait until round t is retired, consume it and return its verdict."""
        until(lambda: self.word(Word.RETIRED) == t, f"round {t} retired")
        layout = ffi.new("struct hf_layout *")
        assert lib.hf_layout_of(geometries.to_c(self.geometry), layout) == 0
        struct.pack_into("<I", self._mapped(), layout.engine_words + 2 * lib.HF_LINE, t)
        return self.verdict(t)

    def round(self, t: int) -> Verdict:
        self.submit(t)
        return self.finish(t)

    def hung_up(self) -> bool:
        """Whether the daemon's end is gone."""
        poller = select.poll()
        poller.register(self.channel.fileno(), 0)
        return any(events & select.POLLHUP for _, events in poller.poll(0))

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            self._map = mmap.mmap(self.region_fd, 0)
        return self._map


@contextlib.contextmanager
def unharmed(daemon: Daemon, name: str = "bystander") -> Iterator[Engine]:
    """Run a session meanwhile; at the end it must still do rounds."""
    with Engine(daemon.path) as bystander:
        bystander.ready(name)
        first = bystander.round(1)
        yield bystander
        assert not bystander.hung_up()
        assert bystander.round(2) is first
        assert daemon.process.poll() is None


def gone(engine: Engine) -> None:
    """Wait until the daemon has closed its end."""
    until(engine.hung_up, "the daemon closed the connection")


def last_word(engine: Engine) -> FromDaemon | None:
    """Return the last message before the daemon closed its end."""
    last: FromDaemon | None = None
    with contextlib.suppress(ChannelClosed, ChannelTimeout):
        while True:
            last = engine.receive()
    return last


def refused(engine: Engine, code: str, *words: str) -> None:
    """Check that the daemon refuses the engine with this code, these words in the reason, and closes."""
    answer = last_word(engine)
    assert isinstance(answer, m.Refused), answer
    assert answer.code == code
    for word in words:
        assert word in answer.reason
    gone(engine)
