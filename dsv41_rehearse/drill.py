# SPDX-License-Identifier: Apache-2.0
"""Drills: what is done to daemon and worker in the middle of a run, by a thread beside the engine's, and what came of it."""

from __future__ import annotations

import threading

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, final

from dsv41_rehearse.drafting import ShimDrafting
from dsv41_rehearse.engine import Engine
from dsv41_rehearse.sessions import Release
from dsv41_rehearse.stack import Child, Stack


RESUMED_S: Final = 0.2
FOR_EVER_S: Final = 1e6
BOUND_MS: Final = 500.0  # from the next daemon's readiness to the first drafted round: what the product promises
BACK_S: Final = (
    30.0  # for a new daemon to be there and drafted with: long, since what is measured is not what is waited for
)


@dataclass(frozen=True)
class Loss:
    """
    One daemon that was killed or stopped, and the next. Times are CLOCK_MONOTONIC, ns; None: it did not happen.

    ``hurt_ns``: when the signal was sent. ``lost_ns``: when the engine saw the loss. ``ready_ns``: the next daemon's log line.
    ``back_ns``: the first drafted round after it. ``released_ns``: for each round that the loss ended, how long after the
    signal, or after its gathering where that was later, the stream was past it.
    """

    hurt_ns: int
    reason: str | None
    lost_ns: int | None
    ready_ns: int | None
    back_ns: int | None
    released_ns: list[int]
    pid_before: int
    pid_after: int | None

    @property
    def seen_ms(self) -> float | None:
        """From the signal to the loss seen."""
        return _ms(self.hurt_ns, self.lost_ns)

    @property
    def released_ms(self) -> float | None:
        """The longest of the rounds that were parked, None where there was none."""
        return max(self.released_ns) / 1e6 if self.released_ns else None

    @property
    def recovery_ms(self) -> float | None:
        """From the next daemon's readiness to the first drafted round."""
        return _ms(self.ready_ns, self.back_ns)

    @property
    def recovery_from_kill_ms(self) -> float | None:
        """From the signal to the first drafted round."""
        return _ms(self.hurt_ns, self.back_ns)


def _ms(from_ns: int | None, to_ns: int | None) -> float | None:
    return None if from_ns is None or to_ns is None else (to_ns - from_ns) / 1e6


Act = Callable[[Engine, ShimDrafting], None]


@final
class Drill:
    """
    A thread that waits for the run and then acts. A context manager around the stack: a child ends with the thread it is from.

    ``planned``: how many losses the run is to have, ``losses``: those that it had. ``bound_ms``: a recovery that takes longer is a
    fault, None: it is not.
    """

    def __init__(self) -> None:
        self.planned = 0
        self.bound_ms: float | None = BOUND_MS
        self.losses: list[Loss] = []
        self._act: Act | None = None
        self._begin = threading.Event()
        self._done = threading.Event()
        self._leave = threading.Event()
        self._stage: tuple[Engine, ShimDrafting] | None = None
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rehearse-drill", daemon=True)

    def __enter__(self) -> Drill:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave.set()
        self._begin.set()
        self._thread.join()

    def plan(self, act: Act) -> None:
        """Say what is to be done once the run has begun."""
        self._act = act

    def begin(self, engine: Engine, drafting: ShimDrafting) -> None:
        """The run begins."""
        self._stage = engine, drafting
        self._begin.set()

    def active(self) -> bool:
        """Whether the engine is still needed."""
        return not self._done.is_set()

    def finish(self) -> None:
        """The run is over. Raises what the act raised."""
        self._done.wait()
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        self._begin.wait()
        try:
            if self._act is not None and self._stage is not None:
                self._act(*self._stage)
        except BaseException as fault:  # noqa: BLE001 raised again where the run ends
            self._fault = fault
        finally:
            self._done.set()
        self._leave.wait()


@dataclass
class Hand:
    """Kills or stops the stack's daemon and starts the next one at the same path."""

    stack: Stack
    endpoint: str

    def replace_daemon(self, drafting: ShimDrafting, *, stop: bool = False) -> Loss:
        """Do it once; return what came of it. A daemon that was stopped goes on once the next one has been drafted with."""
        sessions = drafting.sessions
        before = sessions.seen[-1]
        victim = self.stack.named("daemon")
        hurt_ns = victim.stop() if stop else victim.kill()
        if stop:
            self.stack.unlink_socket()
        ready = self.stack.start_daemon(self.endpoint)
        back = sessions.wait_other_than(before.id, BACK_S)
        released = [_released_ns(one, hurt_ns) for one in sessions.releases if one.session == before.id]
        self._end(victim, resume=stop)
        return Loss(
            hurt_ns=hurt_ns,
            reason=back.lost_before if back else drafting.lost,
            lost_ns=back.lost_before_ns if back else drafting.shim_status().lost_ns or None,
            ready_ns=ready.ready_ns,
            back_ns=back.first_ok_ns if back else None,
            released_ns=released,
            pid_before=before.pid,
            pid_after=back.pid if back else None,
        )

    def _end(self, victim: Child, *, resume: bool) -> None:
        if resume:
            victim.resume()
            # It finds out by itself that it has been left, and lets go, before it is asked to end.
            threading.Event().wait(RESUMED_S)
            victim.end()
        self.stack.forget(victim)


def _released_ns(release: Release, hurt_ns: int) -> int:
    return release.past_ns - max(hurt_ns, release.gathered_ns)


def kill_once(drill: Drill, hand: Hand, share: float) -> Act:
    """Return the act of the demo: the daemon killed after this share of the run."""

    def act(engine: Engine, drafting: ShimDrafting) -> None:
        if drafting.sessions.wait(lambda: engine.progress() >= share, FOR_EVER_S):
            drill.losses.append(hand.replace_daemon(drafting))

    drill.planned = 1
    return act
