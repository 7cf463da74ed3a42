# SPDX-License-Identifier: Apache-2.0
"""The engine's way to its daemon, whichever that is at the moment: sessions come and go, this stays."""

from __future__ import annotations

import os

from types import TracebackType

from engine_shim.batch import Batch
from engine_shim.mode import Mode
from engine_shim.record import RoundRecord, RoundTable
from engine_shim.shimoptions import ShimOptions
from engine_shim.shimstatus import ShimStatus
from engine_shim.softstream import SoftStream
from engine_shim.ticket import RoundRef, Ticket
from hostflag.messages import EngineIdentity, Geometry, Welcome
from hostflag.verdicts import Verdict


class Shim:
    """
    Made once by an engine rank; one thread, the engine thread, submits. A keeper thread connects, and again after a loss.

    Nothing here but the constructor, ``wait_session`` and ``close`` ever waits. Rounds are named by RoundRef (``Ticket.ref``,
    ``Ticket.refs``): two sessions may give two rounds the same number.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        geometry: Geometry,
        model: str,
        engine: EngineIdentity,
        stream: SoftStream,
        mode: Mode | None = None,
        options: ShimOptions | None = None,
    ) -> None:
        """
        ``path``, ``mode`` None take ``options.socket`` and ``options.mode``. ``stream`` must outlive the shim.

        Returns once there is a session, or after ``options.start_timeout_s`` without one: target-only then, unless
        ``options.strict``: that raises DaemonUnreachable, ConnectionRefusedByDaemon or HandshakeFailed, with nothing left behind.
        """
        raise NotImplementedError

    def __enter__(self) -> Shim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def batch(self, max_requests: int | None = None) -> Batch:
        """Return an empty batch; ``max_requests`` None takes the geometry's."""
        raise NotImplementedError

    def submit(self, batch: Batch) -> Ticket:
        """
        Enqueue a step's round, or say in the ticket why there is none (``Skip.NO_SESSION``: nobody to draft with).

        ASYNC: microseconds. SYNC: waits for the reply, at most the deadline and two ticks behind the stream. Whatever the ticket
        says, ``drafts_out`` will hold legal ids. A loss raises nothing. Raises SubmitFailed where the batch is none, or where a
        stream operation failed.
        """
        raise NotImplementedError

    def flush(self) -> Ticket:
        """Ship prefill rows that wait for the ring, without a batch: for an engine that has nothing to do."""
        raise NotImplementedError

    def verdict(self, ref: RoundRef) -> Verdict | None:
        """Return a round's verdict, OPEN while it has none; None where its slot went on."""
        raise NotImplementedError

    def consumed(self, ref: RoundRef) -> bool:
        """Whether the stream has copied the round's reply; True too of a session that is forgotten."""
        raise NotImplementedError

    def drafts(self, ref: RoundRef) -> list[list[int]]:
        """Return what ``Session.drafts`` does. Raises LookupError."""
        raise NotImplementedError

    def table(self, ref: RoundRef) -> RoundTable:
        """Return what ``Session.table`` does. Raises LookupError."""
        raise NotImplementedError

    def record(self, ref: RoundRef) -> RoundRecord:
        """Return what ``Session.record`` does. Raises LookupError."""
        raise NotImplementedError

    def settle(self) -> int:
        """Book the rounds that finished since the last call; submit does it too. Engine thread. Returns how many."""
        raise NotImplementedError

    def status(self) -> ShimStatus:
        """Return a snapshot; after close, the last one. Any thread."""
        raise NotImplementedError

    @property
    def session(self) -> int | None:
        """The id of the session that steps are submitted to; None: they are target-only."""
        raise NotImplementedError

    @property
    def welcome(self) -> Welcome | None:
        """What the daemon of the session in use said of itself (pid, metrics URL); None without one."""
        raise NotImplementedError

    def wait_session(self, timeout_s: float, *, other_than: int | None = None) -> bool:
        """Wait until there is a session (whose id is not ``other_than``). False where there is none in time. Not the engine thread."""
        raise NotImplementedError

    def close(self, timeout_s: float = 5.0) -> None:
        """
        End the session and the keeper; unmap every region. Twice is harmless. Takes at most about ``timeout_s``.

        Raises StreamStuck where the stream does not get past what it was given: its regions stay, and it can be called again.
        """
        raise NotImplementedError
