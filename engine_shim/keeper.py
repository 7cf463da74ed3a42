# SPDX-License-Identifier: Apache-2.0
"""
The keeper: a thread that sees to it that there is a session. It connects, hands a region over, watches, and begins again.

The engine thread never waits for it: it takes the session it finds.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import random
import select
import threading
import time

from collections.abc import Callable
from typing import Final

from engine_shim.budget import Budget
from engine_shim.errors import ConnectionRefusedByDaemon, DaemonUnreachable, HandshakeFailed, ShimError
from engine_shim.handover import Handover
from engine_shim.handshake import MORE_FILES, Bell, Interrupted
from engine_shim.pool import Pool
from engine_shim.saying import say
from engine_shim.session import Session
from engine_shim.shimoptions import ShimOptions
from hostflag.channel import BadMessage, Channel, ChannelClosed, ChannelTimeout
from hostflag.messages import Draining, FromDaemon, Resumed
from hostflag.verdicts import Loss


RECOVERIES_KEPT: Final = 1024
SETTLED_S: Final = 1.0  # a session that lasted so long was a good one: the next try is made at once
REST_S: Final = 0.2
LOOK_S: Final = 0.01  # how often a stream is asked whether it is past a lost region's rounds
# What a daemon that said that it goes may look like in its last moments. A submit that failed or garbage it does not explain.
GOING: Final = {Loss.HANGUP, Loss.BEAT, Loss.EXPIRIES, Loss.DRAINED}


class Keeper:
    """
    ``publish`` gets each new session, and None at its loss, in the keeper's thread. Owns pool and budget while it runs.

    ``adoptions``: sessions on a region that another one had before. ``last_loss``, ``lost_ns``: the newest loss, its reason and
    when it was seen (CLOCK_MONOTONIC, 0: none yet). ``reason``: why there is no session, None while there is one. ``fault``: how
    the last try failed. ``tries``: how many failed.
    """

    def __init__(
        self, handover: Handover, pool: Pool, options: ShimOptions, publish: Callable[[Session | None], None]
    ) -> None:
        self._handover = handover
        self._pool = pool
        self._options = options
        self._publish = publish
        self.budget = Budget(options.respawns, options.respawn_reset_s)
        self.losses: collections.Counter[str] = collections.Counter()
        self.recovery_ms: collections.deque[float] = collections.deque(maxlen=RECOVERIES_KEPT)
        self.sessions = 0
        self.adoptions = 0
        self.last_loss: str | None = None
        self.reason: str | None = "there was no session yet"
        self.fault: ShimError | None = None
        self.tries = 0
        self._changed = threading.Condition()
        self._said = ""
        self._stop = False
        self._owing = False  # an unplanned loss that the budget has not paid for
        self._watched: Session | None = None
        self.lost_ns = 0
        self._pauses = 0
        self._loss = -1
        self._bell: Bell  # from ``start`` on, as the thread
        self._fds: list[int] = []
        self._thread = threading.Thread(target=self._run, name="hf-keeper", daemon=True)

    def start(self) -> None:
        """Raise ShimError where there is no descriptor or no thread to be had. Whatever is raised: ``close`` is due."""
        try:
            for _ in range(2):
                self._fds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            bell, self._loss = self._fds
            self._bell = Bell(bell, lambda: self._stop)
            self._thread.start()
        except OSError as error:
            raise ShimError(f"no eventfd for the keeper: {error.strerror}. {MORE_FILES}") from error
        except RuntimeError as error:
            raise ShimError(f"no thread for the keeper: {error}. Raise the limit of threads (RLIMIT_NPROC)") from error

    def stop(self, timeout_s: float) -> bool:
        """End the thread; sessions and regions stay as they are, the caller's from here. False where it does not end in time."""
        self._stop = True
        if self._thread.ident is not None:  # else it was never started
            os.eventfd_write(self._bell.fd, 1)
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Close its descriptors, once it is stopped. Twice is harmless."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def _run(self) -> None:
        while not self._stop:
            try:
                self._go_on()
            except Interrupted:
                return
            except Exception as fault:  # noqa: BLE001 - without this thread there would never be a session again
                self._failed_itself(fault)

    def _go_on(self) -> None:
        self._afford()
        session = self._try()
        if session is not None:
            self._watch(session)

    def _failed_itself(self, fault: Exception) -> None:
        """Say what no try and no daemon is to blame for, and rest as after a failed try. Raises nothing, whatever fails here too."""
        with contextlib.suppress(Exception):  # the first fault is the one to be told of
            self._abandon()
        with contextlib.suppress(Exception):
            self._explain(fault)
        try:
            self._rest()
        except Exception:  # noqa: BLE001 - not even that: but not again at full speed
            time.sleep(REST_S)

    def _explain(self, fault: Exception) -> None:
        what = f"the keeper failed: {fault!r}"
        self.fault = HandshakeFailed(what)
        self._turn(what)
        self._say(logging.ERROR, what, f"target-only: {what}", fault)

    def _abandon(self) -> None:
        """Give up the session whose watch failed: whether it still stands nobody knows, and nobody would see its loss."""
        self._publish(None)
        session, self._watched = self._watched, None
        if session is not None:
            self._owing = True
            self._pool.in_use = None
            session.give_up()
            self._note(session, planned=False)

    # ---- how things stand ----

    def wait_until(self, there: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for something that changes with ``reason``. False where it does not come in time. Any thread but the engine's."""
        with self._changed:
            return self._changed.wait_for(there, timeout_s)

    def _turn(self, reason: str | None) -> None:
        with self._changed:
            self.reason = reason
            self._changed.notify_all()

    def _say(self, level: int, state: str, text: str, bug: BaseException | None = None) -> None:
        """One line for each change of state, however often it is found to be so. ``bug``: its traceback goes with it."""
        if state != self._said:
            self._said = state
            say(level, text, fault=bug)

    # ---- connecting ----

    def _afford(self) -> None:
        """Return once an unplanned loss is paid for."""
        while self._owing and not self.budget.take():
            wait_s = self.budget.wait_s
            text = f"{self._options.respawns} sessions were lost unplanned in {self._options.respawn_reset_s:g} s"
            self._turn(f"the budget is spent: {text}")
            self._say(
                logging.ERROR, "spent", f"target-only for the next {wait_s:.0f} s: {text} and one more after them"
            )
            self._pause(min(wait_s, 3600.0))
        self._owing = False

    def _try(self) -> Session | None:
        """Try once; after a failure pause."""
        try:
            session = self._handover.run(self._bell, self._loss)
        except ShimError as fault:
            self._failed(fault)
            return None
        except Interrupted:
            raise
        except Exception as bug:  # noqa: BLE001 - the next try may go well all the same
            self._failed(HandshakeFailed(f"a try failed unexpectedly: {bug!r}"), bug)
            return None
        self._watched = session
        self.sessions += 1
        self.adoptions += self._handover.adopted
        self._pool.in_use = self._handover.place
        if self.lost_ns:
            self.recovery_ms.append((time.monotonic_ns() - self.lost_ns) / 1e6)
        self._say(logging.INFO, f"session {session.id}", f"session {session.id:016x} with daemon {session.welcome.pid}")
        self._publish(session)
        self._turn(None)
        return session

    def _failed(self, fault: ShimError, bug: Exception | None = None) -> None:
        fault.__cause__ = bug or fault.__cause__
        self.fault = fault
        self.tries += 1
        self._turn(str(fault))
        kind = fault.code if isinstance(fault, ConnectionRefusedByDaemon) else type(bug or fault).__name__
        absent = type(fault) is DaemonUnreachable  # not started yet, most likely; what is derived from it is trouble
        self._say(logging.INFO if absent else logging.WARNING, f"failed: {kind}", f"target-only: {fault}", bug)
        (self._back_off if bug is None else self._rest)()

    def _back_off(self) -> None:
        self._pause(self._delay_s())

    def _delay_s(self) -> float:
        first, longest = self._options.backoff_ms
        delay_ms: float = min(longest, first * 2 ** min(self._pauses, 30))
        self._pauses += 1
        return delay_ms / 1000 * random.uniform(0.5, 1.0)

    def _rest(self) -> None:
        """Back off and look at nothing: what failed may be the looking itself."""
        poller = select.poll()
        poller.register(self._bell.fd, select.POLLIN)
        poller.poll(self._delay_s() * 1000)

    def _pause(self, seconds: float) -> None:
        """Wait; meanwhile regions come back."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._poll(left)

    # ---- watching ----

    def _watch(self, session: Session) -> None:
        """Return once the session is lost, with everything noted."""
        began = time.monotonic()
        planned = False
        listening = True
        while session.lost is Loss.NONE:
            self._poll(None, session.channel if listening else None)
            planned, listening = _heard(session.channel, planned, listening)
        # Noted before it is published: the lost session takes no rounds anyhow, and who finds none finds the reason too.
        planned, _ = _heard(session.channel, planned, listening)
        self._note(session, planned=planned)
        self._watched = None
        self._pool.in_use = None
        self._publish(None)
        self._turn(f"the session was lost ({self.last_loss})")
        if time.monotonic() - began >= SETTLED_S:
            self._pauses = 0
        else:
            self._back_off()

    def _note(self, session: Session, *, planned: bool) -> None:
        loss = session.lost
        planned = loss is Loss.DRAINED or (planned and loss in GOING)
        name = Loss.DRAINED.name if planned else loss.name
        self.losses[name] += 1
        self.last_loss = name
        self._owing = not planned
        self.lost_ns = session.status().lost_ns
        self._say(logging.WARNING, f"lost {session.id}", f"session {session.id:016x} lost ({name}): target-only")

    def _poll(self, timeout_s: float | None, channel: Channel[FromDaemon] | None = None) -> None:
        """Sleep until something happens to sessions or fences, or the time is up. Raises Interrupted at the end."""
        poller = select.poll()
        for fd in (self._bell.fd, self._loss):
            poller.register(fd, select.POLLIN)
        for fd in self._pool.fences():
            poller.register(fd, 0)
        if channel is not None:
            poller.register(channel.fileno(), select.POLLIN)
        if self._pool.unreaped:
            timeout_s = LOOK_S if timeout_s is None else min(timeout_s, LOOK_S)
        ready = {fd for fd, _ in poller.poll(None if timeout_s is None else timeout_s * 1000)}
        if self._loss in ready:
            os.eventfd_read(self._loss)
        if self._stop:
            raise Interrupted
        self._pool.look()


def _heard(channel: Channel[FromDaemon], planned: bool, listening: bool) -> tuple[bool, bool]:
    """Take what the daemon said. Whether it has said that it will go, and whether it is to be listened to any longer."""
    while listening:
        try:
            received = channel.receive(0)
        except ChannelTimeout:
            break
        except (ChannelClosed, BadMessage):
            # An empty packet, or nothing will come any more. That the daemon is gone only POLLHUP says, to the watchdog.
            listening = False
            break
        received.close_fds()
        if isinstance(received.message, (Draining, Resumed)):
            planned = isinstance(received.message, Draining)
    return planned, listening
