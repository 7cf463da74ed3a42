# SPDX-License-Identifier: Apache-2.0
"""One session: submit steps, see what became of their rounds."""

from __future__ import annotations

import errno
import os
import time

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from engine_shim import farewell, forks
from engine_shim._engine import ffi, lib
from engine_shim.batch import Batch
from engine_shim.errors import HandshakeFailed, SessionClosed, StreamStuck, SubmitFailed
from engine_shim.mode import Mode
from engine_shim.options import SessionOptions
from engine_shim.record import RoundRecord, RoundTable, record_of, table_of
from engine_shim.region import Region, text_of
from engine_shim.softstream import NS
from engine_shim.status import SessionStatus, status_of
from engine_shim.stream import Stream
from engine_shim.ticket import Ticket, ticket_of
from engine_shim.turn import Turn
from hostflag.channel import Channel
from hostflag.messages import FromDaemon, Ready, Welcome
from hostflag.region import Word
from hostflag.verdicts import Loss, Verdict


MS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTerms:
    """What a session is to be. ``loss_fd``: an eventfd that is written once it is lost. ``owns_region``: ``close`` closes it too."""

    deadline_ms: float
    mode: Mode
    options: SessionOptions
    owns_region: bool
    loss_fd: int = -1


class Session:
    """
    An engine rank's session with one daemon, on a region. One thread submits; any thread may read.

    ``id``: the daemon's number for it. ``welcome``: what the daemon said. ``locked``: whether the region is locked in this
    process's memory, else ``lock_reason`` says why not; ``daemon_locked`` and ``daemon_lock_reason`` say it of the daemon.
    Owns ``channel``. Raises HandshakeFailed where it cannot begin.
    """

    def __init__(
        self,
        region: Region,
        channel: Channel[FromDaemon],
        *,
        welcome: Welcome,
        ready: Ready,
        stream: Stream,
        terms: SessionTerms,
    ) -> None:
        self.id = int(welcome.session, 16)
        self.welcome = welcome
        self.geometry = region.geometry
        self.daemon_locked = ready.locked
        self.daemon_lock_reason = ready.lock_reason
        self.region = region
        self.channel = channel
        self._owns_region = terms.owns_region
        self._handle: Any = ffi.gc(_begin(region, channel, welcome, terms), lib.hfe_free)
        self._stream = stream  # must outlive the session
        self._submit = lib.hfe_submit_sync if terms.mode is Mode.SYNC else lib.hfe_submit
        self._flush = lib.hfe_flush_sync if terms.mode is Mode.SYNC else lib.hfe_flush
        self._ticket: Any = ffi.new("struct hfe_ticket *")
        self._ticket_buffer: Any = ffi.buffer(self._ticket)
        self._last: SessionStatus | None = None
        self._closed = False
        self._closing = Turn()
        self._dead = False  # in a forked child
        if terms.owns_region:
            forks.forget_in_children(self)
        lock_error = self.status().lock_error
        self.locked = lock_error == 0
        self.lock_reason = None if self.locked else f"mlock: {os.strerror(lock_error)} (raise RLIMIT_MEMLOCK)"

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def batch(self, max_requests: int | None = None) -> Batch:
        """Return an empty batch; ``max_requests`` None takes the geometry's."""
        return Batch(self.geometry.max_requests if max_requests is None else max_requests)

    def submit(self, batch: Batch) -> Ticket:
        """
        Enqueue a step's round, or say in the ticket why there is none. Microseconds; never blocks on the daemon.

        Whatever the ticket says, ``drafts_out`` will hold legal ids. Raises SubmitFailed.
        """
        result = self._submit(self._open(), batch.c, self._ticket)
        return ticket_of(self._ticket_buffer, self.id) if result == 0 else self._to_ticket(result)

    def flush(self) -> Ticket:
        """Ship prefill rows that wait for the ring, without a batch: for an engine that has nothing to do."""
        return self._to_ticket(self._flush(self._open(), self._ticket))

    def verdict(self, round_: int) -> Verdict | None:
        """Return the verdict of a round, OPEN while it has none; None where its slot went on. Never blocks."""
        value = lib.hfe_verdict(self._open(), round_)
        return None if value < 0 else Verdict(value)

    def consumed(self, round_: int) -> bool:
        """Whether the stream has copied the round's reply."""
        return bool(lib.hfe_consumed(self._open(), round_))

    def drafts(self, round_: int) -> list[list[int]]:
        """
        Return the reply of a consumed drafting round, [n_requests][drafts] in batch order; junk unless its verdict is OK.

        Raises LookupError where the round is not consumed, or its slot went on.
        """
        k = self.geometry.drafts
        ids = ffi.new("int64_t[]", self.geometry.max_requests * k)
        count = lib.hfe_drafts(self._open(), round_, ids, len(ids))
        if count < 0:
            raise LookupError(_no_round(round_, count))
        return [[int(one) for one in ids[at : at + k]] for at in range(0, count, k)]

    def table(self, round_: int) -> RoundTable:
        """
        Return what a round shipped. Engine thread; at its best right after the submit.

        Raises LookupError where its slot went on.
        """
        header = ffi.new("struct hf_round *")
        requests = ffi.new("struct hf_request[]", self.geometry.max_requests)
        result = lib.hfe_round_table(self._open(), round_, header, requests)
        if result < 0:
            raise LookupError(_no_round(round_, result))
        return table_of(header, requests)

    def record(self, round_: int) -> RoundRecord:
        """
        Return the record of a settled round, one of the last ``HF_RECORDS`` - 1: the next one is written over the one before them.

        Raises LookupError where it is not there, or not any more.
        """
        record = ffi.new("struct hf_record *")
        result = lib.hfe_record(self._open(), round_, record)
        if result < 0:
            raise LookupError(_no_round(round_, result))
        return record_of(record)

    def settle(self) -> int:
        """Book the rounds that finished since the last call; submit does it too. Engine thread. Returns how many."""
        return int(lib.hfe_settle(self._open()))

    def status(self) -> SessionStatus:
        """Return a snapshot; after close, the last one."""
        if self._last is not None:
            return self._last
        status = ffi.new("struct hfe_status *")
        lib.hfe_status_of(self._open(), status)
        return status_of(status)

    @property
    def lost(self) -> Loss:
        """Why the session was lost, or NONE."""
        return self.status().lost

    def word(self, name: str) -> int:
        """Return a word of the region by its name, such as ``released``."""
        return int(lib.hfe_word(self._open(), Word[name.upper()]))

    def give_up(self) -> None:
        """Give the session up: no more submits, gathered rounds are released at once."""
        lib.hfe_give_up(self._open(), lib.HF_LOSS_CLOSED)

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been done."""
        return self._last is not None

    def close(self, timeout_s: float = 5.0) -> None:
        """
        End the session: rounds in flight end, the daemon says goodbye, everything is unmapped. Twice is harmless.

        Raises StreamStuck where the stream does not get past what it was given: then the region, its watchdog and the
        socket stay, and it can be called again. And where another thread is closing it for as long, or this one already.
        """
        if self._closed or self._dead:
            return
        until = time.monotonic() + timeout_s
        self._closing.take(lambda: self._close(until), timeout_s)

    def _close(self, until: float) -> None:
        if self._closed:
            return
        # What was interrupted goes on where it was: nothing of the region is looked at once that is gone.
        if self._last is None:
            self._last = self.end(max(0.0, until - time.monotonic()))
        self._handle = None
        if self._owns_region:
            self.region.close()
        self._closed = True
        farewell.say(self.channel, until - time.monotonic(), lost=self._last.lost)

    def end(self, timeout_s: float) -> SessionStatus:
        """
        Return the last status; after this the region is free for another session. Engine thread, or where nobody submits.

        Raises StreamStuck as ``close`` does. Not the whole of ``close``: the socket is the caller's to end.
        """
        self._past(lib.hfe_end(self._open(), int(timeout_s * NS)), timeout_s)
        self.settle()
        return self.status()

    def leave(self, timeout_s: float) -> None:
        """Let the stream past all rounds, beside whoever submits: his later steps have no round. Nothing is given back. Raises as ``end``."""
        self._past(lib.hfe_leave(self._open(), int(timeout_s * NS)), timeout_s)

    def _past(self, result: int, timeout_s: float) -> None:
        if result < 0:
            raise StreamStuck(
                f"the stream did not get past its rounds within {timeout_s:.3g} s: the region stays mapped ({self.status()})"
            )

    @property
    def ended(self) -> bool:
        """Whether its watchdog has ended: it is lost, and the stream is past all its rounds."""
        return bool(lib.hfe_ended(self._open()))

    def reap(self) -> bool:
        """End a lost session whose stream is past everything. Whether that is so; never waits. Any thread, but only one."""
        handle = self._open()
        return bool(lib.hfe_ended(handle)) and bool(lib.hfe_end(handle, 0) == 0)

    def forked(self) -> None:
        """Drop what a forked child has of it: descriptors. The child has no map and no watchdog."""
        self._dead = True
        if self._handle is not None:
            lib.hfe_forked(self._handle)
            self._handle = None
        if self._owns_region:
            self.region.forked()
        self.channel.close()

    def _open(self) -> Any:
        if self._handle is None:
            raise SessionClosed("the session is closed")
        return self._handle

    def _to_ticket(self, result: int) -> Ticket:
        if result < 0:
            raise SubmitFailed.of(-result, self._stream.fault, lost=self.lost is not Loss.NONE)
        return ticket_of(self._ticket_buffer, self.id)


def _begin(region: Region, channel: Channel[FromDaemon], welcome: Welcome, terms: SessionTerms) -> Any:
    options = terms.options
    config = ffi.new("struct hfe_config *")
    config.session = int(welcome.session, 16)
    config.deadline_ns = int(terms.deadline_ms * MS)
    config.tick_ns = int(options.tick_ms * MS)
    config.starved_ns = int(options.starved_ms * MS)
    config.beat_limit_ns = int(options.beat_limit(terms.deadline_ms, welcome.network_timeout_ms) * MS)
    config.expiries_limit = options.expiries_limit
    config.socket = channel.fileno()
    config.loss_fd = terms.loss_fd
    config.realtime = options.realtime
    config.unbatched = not options.batched
    config.stream_limit_ns = int(options.stream_limit_ms * MS)
    session = ffi.new("struct hfe_session **")
    reason = ffi.new("const char **")
    result = lib.hfe_open(region.c, config, session, reason)
    if result < 0:
        raise HandshakeFailed(f"the session cannot be opened: {text_of(reason[0])} ({os.strerror(-result)})")
    return session[0]


def _no_round(round_: int, result: int) -> str:
    if -result == errno.EAGAIN:
        return f"round {round_} is not consumed yet"
    return f"round {round_} is not there: never made, or its slot went on"
