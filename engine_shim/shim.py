# SPDX-License-Identifier: Apache-2.0
"""The engine's way to its daemon, whichever that is at the moment: sessions come and go, this stays."""

from __future__ import annotations

import os
import threading
import time

from pathlib import Path
from types import TracebackType
from typing import Final

from engine_shim import forks, kept
from engine_shim.batch import Batch
from engine_shim.connection import hello_of
from engine_shim.ending import Ending
from engine_shim.errors import AsyncRefused, HandshakeFailed, SessionClosed
from engine_shim.handover import Handover
from engine_shim.keeper import Keeper
from engine_shim.mode import Mode
from engine_shim.pool import Pool
from engine_shim.record import RoundRecord, RoundTable
from engine_shim.seat import Seat
from engine_shim.session import Session
from engine_shim.shimoptions import ShimOptions
from engine_shim.shimstatus import ShimStatus
from engine_shim.shimview import ShimView
from engine_shim.spare import Spare
from engine_shim.stream import Stream
from engine_shim.ticket import RoundRef, Ticket
from engine_shim.trial import Trial
from engine_shim.turn import Turn
from hostflag.messages import EngineIdentity, Geometry, Welcome
from hostflag.verdicts import Loss, Skip, Verdict


NO_SESSION: Final = Ticket(None, Skip.NO_SESSION, 0, 0, 0, 0)


class Shim:
    """
    Made once by an engine rank; one thread, the engine thread, submits. A keeper thread connects, and again after a loss.

    Nothing here waits but the constructor, ``wait_session``, ``first_session`` and ``close``; and ``submit`` and ``flush`` where
    rounds are SYNC. Rounds are named by RoundRef (``Ticket.ref``, ``Ticket.refs``): two sessions may give two rounds the same number.
    In a forked child it is dead: steps are target-only there, nothing is enqueued, nothing of the parent's is touched.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        geometry: Geometry,
        model: str,
        engine: EngineIdentity,
        stream: Stream,
        mode: Mode | None = None,
        options: ShimOptions | None = None,
    ) -> None:
        """
        ``path``, ``mode`` None take ``options.socket`` and ``options.mode``. ``stream`` must outlive the shim.

        Returns once there is a session, or after ``options.start_timeout_s`` without one: target-only then, unless
        ``options.strict``: that raises DaemonUnreachable, ConnectionRefusedByDaemon or HandshakeFailed, with nothing left behind
        but what the stream does not let go of, which the log says.
        Where ASYNC is asked for and the stream refuses it, or fails its self-test (a CUDA stream's; before the first session), rounds are
        SYNC and ``status().async_refusal`` says why; strict: AsyncRefused. Raises ShimError where there is no memory, descriptor or thread
        for the shim itself.
        """
        options = options or ShimOptions()
        asked = options.mode if mode is None else mode
        self._trial = Trial(stream, asked, options, geometry=geometry, model=model, engine=engine)
        self.geometry = geometry
        hello = hello_of(
            geometry, model, engine, options.deadline_ms,
            spin_us=options.spin_us, nap_us=options.nap_us, echo_us=options.session.echo_us,
        )  # fmt: skip
        self._seat = Seat()
        self._pool = Pool(options.regions)
        self._dead = False  # in a forked child
        self._last: ShimStatus | None = None
        self._closed = False
        self._closing = Turn()
        self._looking = threading.Lock()  # who looks at regions, and who unmaps them
        socket = options.socket if path is None else Path(path)
        handover = Handover(socket, hello, stream=stream, pool=self._pool, trial=self._trial, options=options)
        self._keeper = Keeper(handover, self._pool, options, self._offer)
        self._ending = Ending(self._keeper, self._pool, self._seat, self._trial)
        self._view = ShimView(self._trial, stream, self._pool, self._keeper)
        # The first thing that is to be given back; from here on ``close`` does it.
        self._spare = Spare(stream, geometry)
        try:
            forks.forget_in_children(self)
            forks.leave_at_exit(self)
            self._keeper.start()
            self._start(options)
        except BaseException:
            # Ctrl-C among them: nobody else knows this shim yet, and its keeper is using the stream.
            kept.close_or_keep(self.close)
            raise

    def _start(self, options: ShimOptions) -> None:
        if options.strict:
            self.first_session(options.start_timeout_s)
            return
        keeper = self._keeper
        keeper.wait_until(lambda: keeper.reason is None or keeper.tries > 0, options.start_timeout_s)

    def _offer(self, session: Session | None) -> None:
        self._seat.offered = session

    def __enter__(self) -> Shim:
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
        Enqueue a step's round, or say in the ticket why there is none (``Skip.NO_SESSION``: nobody to draft with).

        ASYNC: microseconds. SYNC: waits for the reply, at most the deadline and two ticks behind the stream. Whatever the ticket
        says, ``drafts_out`` will hold legal ids. A loss raises nothing. Raises SubmitFailed where the batch is none, or where a
        stream operation failed.
        """
        session = self._take()
        target = self._spare if session is None else session
        ticket = NO_SESSION if self._dead else target.submit(batch)
        if self._seat.unsettled:
            self._seat.settle()
        return ticket

    def flush(self) -> Ticket:
        """Ship prefill rows that wait for the ring, without a batch: for an engine that has nothing to do."""
        session = self._take()
        return NO_SESSION if session is None else session.flush()

    def verdict(self, ref: RoundRef) -> Verdict | None:
        """Return a round's verdict, OPEN while it has none; None where its slot went on."""
        session = self._find(ref)
        return None if session is None else session.verdict(ref.round)

    def consumed(self, ref: RoundRef) -> bool:
        """Whether the stream has copied the round's reply; True too of a session that is forgotten."""
        session = self._find(ref)
        return True if session is None else session.consumed(ref.round)

    def drafts(self, ref: RoundRef) -> list[list[int]]:
        """Return what ``Session.drafts`` does. Raises LookupError."""
        return self._found(ref).drafts(ref.round)

    def table(self, ref: RoundRef) -> RoundTable:
        """Return what ``Session.table`` does. Raises LookupError."""
        return self._found(ref).table(ref.round)

    def record(self, ref: RoundRef) -> RoundRecord:
        """Return what ``Session.record`` does. Raises LookupError."""
        return self._found(ref).record(ref.round)

    def settle(self) -> int:
        """Book the rounds that finished since the last call; submit does it too. Engine thread. Returns how many."""
        return 0 if self._dead else self._seat.settle()

    def status(self) -> ShimStatus:
        """Return a snapshot; after close, the last one. Any thread. A forked child counts nothing."""
        if self._dead:
            return self._view.without_memory("this is a forked child")
        with self._looking:
            return self._last or self._view.look(self._seat.offered, self._spare)

    @property
    def session(self) -> int | None:
        """The id of the session that steps are submitted to; None: they are target-only."""
        session = self._seat.offered
        return None if session is None else session.id

    @property
    def welcome(self) -> Welcome | None:
        """What the daemon of the session in use said of itself (pid, metrics URL); None without one."""
        session = self._seat.offered
        return None if session is None else session.welcome

    def wait_session(self, timeout_s: float, *, other_than: int | None = None) -> bool:
        """Wait until there is a session (whose id is not ``other_than``). False where there is none in time. Not the engine thread."""

        def there() -> bool:
            session = self._seat.offered
            return session is not None and session.id != other_than

        if self._dead:
            return False
        return self._keeper.wait_until(there, timeout_s)

    def first_session(self, timeout_s: float) -> None:
        """
        Wait for a session, as ``options.strict`` does. Not the engine thread.

        Raises how the last try failed where there is none in time: DaemonUnreachable, ConnectionRefusedByDaemon, HandshakeFailed; or
        AsyncRefused at once, where a strict self-test failed.
        """
        keeper = self._keeper
        over = keeper.wait_until(lambda: keeper.reason is None or isinstance(keeper.fault, AsyncRefused), timeout_s)
        if not over or isinstance(keeper.fault, AsyncRefused):
            doing = self._trial.doing  # once: it ends in the keeper's thread
            why = "no try is over" if doing is None else f"the keeper is {doing}"
            raise keeper.fault or HandshakeFailed(f"no session within {timeout_s:g} s: {why}")

    @property
    def closed(self) -> bool:
        """Whether ``close`` has been done."""
        return self._last is not None

    def close(self, timeout_s: float = 5.0) -> None:
        """
        End the session and the keeper; unmap every region. Twice is harmless. Takes at most about ``timeout_s``.

        Raises StreamStuck where the stream does not get past what it was given: its regions stay, and it can be called again.
        So it can where it was interrupted. And where another thread is closing it for as long, or this one already.
        """
        if self._dead or self._closed:
            return
        until = time.monotonic() + timeout_s
        self._closing.take(lambda: self._close(until), timeout_s)

    def _close(self, until: float) -> None:
        if self._closed:
            return
        if self._last is None:
            self._end(until)
        # Nobody finds a session or a region from here on; what is gone is not looked at again.
        self._seat.clear()
        self._pool.close()
        self._spare.close()
        self._keeper.close()
        self._closed = True
        self._ending.say_goodbye(until)

    def _end(self, until: float) -> None:
        """End keeper and sessions, and take the last look at what they did."""
        self._ending.stop_keeper(until)
        session = self._take()
        self._ending.end_sessions(until)
        self._seat.settle()
        with self._looking:
            last = self._view.look(session, self._spare)
            self._ending.part(Loss.CLOSED if session is None else session.lost)
            self._last = last

    def leave(self, timeout_s: float) -> None:
        """
        End the session and the keeper with the process, whose threads may submit to its very end: their steps are target-only then.

        Nothing is unmapped, freed or closed: the process takes it along. ``close`` may follow. Raises StreamStuck as it does.
        """
        if self._dead or self._closed:
            return
        until = time.monotonic() + timeout_s
        self._closing.take(lambda: self._leave(until), timeout_s)

    def _leave(self, until: float) -> None:
        try:
            if self._last is None:
                self._ending.leave(until)
        finally:
            self._ending.say_goodbye(until)  # where there is one to be said

    def forked(self) -> None:
        """In a forked child: close what keeps the parent's sessions open, and be dead from here on. A closed one is only that."""
        leaving = self._ending.forked()
        if self._dead or (self._closed and not leaving):
            return
        self._dead = True
        self._keeper.close()
        self._seat.clear()
        self._pool.forked()

    def _take(self) -> Session | None:
        if self._last is not None:
            raise SessionClosed("the shim is closed")
        seat = self._seat
        return seat.taken if seat.offered is seat.taken else seat.take()

    def _find(self, ref: RoundRef) -> Session | None:
        if self._last is not None:
            raise SessionClosed("the shim is closed")
        return self._seat.find(ref)

    def _found(self, ref: RoundRef) -> Session:
        session = self._find(ref)
        if session is None:
            raise LookupError(f"session {ref.session:016x} of round {ref.round} is forgotten")
        return session
