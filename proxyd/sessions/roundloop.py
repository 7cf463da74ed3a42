# SPDX-License-Identifier: Apache-2.0
"""One session's round loop (native/roundloop.h) as an object: a C thread that this side only posts commands to."""

from __future__ import annotations

import contextlib
import enum
import os

from dataclasses import dataclass
from typing import Any

from proxyd._daemon import ffi, lib


class LoopError(Exception):
    """The round loop could not start; the message says why."""


class LinkState(enum.IntEnum):
    """``enum hfd_link_state``."""

    NONE = lib.HFD_LINK_NONE
    CONNECTING = lib.HFD_LINK_CONNECTING
    OPENING = lib.HFD_LINK_OPENING
    UP = lib.HFD_LINK_UP
    REFUSED = lib.HFD_LINK_REFUSED


class BreakerState(enum.IntEnum):
    """``enum hfd_breaker_state``."""

    CLOSED = lib.HFD_BREAKER_CLOSED
    OPEN = lib.HFD_BREAKER_OPEN
    HALF_OPEN = lib.HFD_BREAKER_HALF_OPEN


class EventKind(enum.IntEnum):
    """``enum hfd_event_kind``."""

    LINK_UP = lib.HFD_EVENT_LINK_UP
    LINK_DOWN = lib.HFD_EVENT_LINK_DOWN
    LINK_BARRED = lib.HFD_EVENT_LINK_BARRED
    LINK_REFUSED = lib.HFD_EVENT_LINK_REFUSED
    LINK_RETURNED = lib.HFD_EVENT_LINK_RETURNED
    LINK_WANTED = lib.HFD_EVENT_LINK_WANTED
    BREAKER_OPEN = lib.HFD_EVENT_BREAKER_OPEN
    BREAKER_PROBE = lib.HFD_EVENT_BREAKER_PROBE
    BREAKER_CLOSED = lib.HFD_EVENT_BREAKER_CLOSED
    BAD_GATHER = lib.HFD_EVENT_BAD_GATHER
    LOST = lib.HFD_EVENT_LOST
    ENGINE_GONE = lib.HFD_EVENT_ENGINE_GONE
    FAULT = lib.HFD_EVENT_FAULT
    STOPPED = lib.HFD_EVENT_STOPPED


@dataclass(frozen=True, slots=True)
class LoopEvent:
    """``tag`` names the link it is about, 0 none. ``body`` is the worker's JSON, not checked."""

    kind: EventKind
    tag: int
    body: bytes
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """``struct hfd_config``: times in ns."""

    session: int
    base: int
    network_timeout_ns: int
    spin_ns: int
    nap_ns: int
    ping_ns: int = 2_000_000_000
    ping_limit_ns: int = 1_000_000_000
    open_limit_ns: int = 2_000_000_000
    reopen_ns: int = 5_000_000_000
    breaker_failures: int = 3
    breaker_cool_ns: int = 500_000_000


class RoundLoop:
    """
    Runs from construction until STOPPED; the eventfd ``fileno`` is readable when events wait.

    ``region_fd`` and ``socket_fd`` stay the caller's: the loop has a map, and a duplicate of the socket that it closes last.
    """

    def __init__(self, region_fd: int, socket_fd: int, config: LoopConfig) -> None:
        self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        duplicate = -1
        try:
            duplicate = os.dup(socket_fd)
            self._loop: Any = _start(region_fd, duplicate, self._event_fd, config)
        except BaseException:
            os.close(self._event_fd)
            if duplicate >= 0:
                os.close(duplicate)
            raise

    def fileno(self) -> int:
        return self._event_fd

    def link(self, transport: Any, tag: int, opening: bytes) -> None:
        """
        Hand a transport over; ``opening`` is the whole OPEN message.

        Raises OSError where the loop does not take it: EBUSY, ESHUTDOWN. Then it stays the caller's.
        """
        result = lib.hfd_loop_link(self._loop, transport, tag, opening, len(opening))
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def drain(self) -> None:
        """Take no more rounds; the one in flight ends as it would."""
        lib.hfd_loop_drain(self._loop)

    def resume(self) -> None:
        """Take rounds again."""
        lib.hfd_loop_resume(self._loop)

    def stop(self, closing: bytes) -> None:
        """Begin the end; ``closing`` is the whole CLOSE message. STOPPED follows. May be called again."""
        result = lib.hfd_loop_stop(self._loop, closing, len(closing))
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def events(self) -> list[LoopEvent]:
        """Return what happened since the last call; STOPPED, once it comes, is the last one ever."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event_fd)
        events = []
        event = ffi.new("struct hfd_event *")
        while lib.hfd_loop_event(self._loop, event) > 0:
            # Copied: the loop keeps a body only until the next event is taken.
            body = bytes(ffi.buffer(event.body, event.body_bytes)) if event.body != ffi.NULL else b""
            events.append(LoopEvent(EventKind(event.kind), int(event.tag), body, text(event.reason)))
        return events

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread and free the loop; False where it has not ended. After STOPPED it takes no time."""
        if lib.hfd_loop_join(self._loop, round(timeout_s * 1e9)) < 0:
            return False
        lib.hfd_loop_free(self._loop)
        self._loop = None
        os.close(self._event_fd)
        return True

    def lock_error(self) -> int:
        """Return 0 where the map is locked in memory, else the errno."""
        return -int(self._status().lock_error)

    def link_state(self) -> LinkState:
        return LinkState(self._status().link)

    def done(self) -> int:
        """Return the last round that was retired."""
        return int(self._status().done)

    def beats(self) -> int:
        """Return how often it has beaten: at least once in 0.1 s, whatever it does."""
        return int(self.counters().beats)

    def stopped(self) -> bool:
        """Whether its thread has let go of everything."""
        return bool(self._status().stopped)

    def breaker_state(self) -> BreakerState:
        return BreakerState(self._status().breaker)

    def counters(self) -> Any:
        """Return a ``struct hfd_counters *`` as of now."""
        counters = ffi.new("struct hfd_counters *")
        lib.hfd_loop_counters(self._loop, counters)
        return counters

    def histogram(self, number: int) -> Any:
        """Return a ``struct hfd_histogram_view *`` as of now; ``number`` is an ``enum hfd_histogram_id``."""
        view = ffi.new("struct hfd_histogram_view *")
        if lib.hfd_loop_histogram(self._loop, number, view) < 0:
            raise ValueError(f"{number} is no histogram")
        return view

    def _status(self) -> Any:
        status = ffi.new("struct hfd_status *")
        lib.hfd_loop_status(self._loop, status)
        return status


def _start(region_fd: int, socket_fd: int, event_fd: int, config: LoopConfig) -> Any:
    fields = {name: getattr(config, name) for name in LoopConfig.__slots__}
    settings = ffi.new("struct hfd_config *", {**fields, "socket": socket_fd, "event_fd": event_fd})
    loop = ffi.new("struct hfd_loop **")
    reason = ffi.new("const char **")
    result = lib.hfd_loop_start(region_fd, settings, loop, reason)
    if result < 0:
        raise LoopError(f"{text(reason[0]) or 'the round loop does not start'}: {os.strerror(-result)}")
    return loop[0]


def text(pointer: Any) -> str:
    """Return a C text; empty for NULL."""
    if pointer == ffi.NULL:
        return ""
    raw = ffi.string(pointer)
    return raw.decode() if isinstance(raw, bytes) else str(raw)
