# SPDX-License-Identifier: Apache-2.0
"""Rounds of a self-test: patterned ones that prove the order of things, one with a module load behind it, timed ones."""

from __future__ import annotations

import contextlib
import os
import time

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from engine_shim.batch import Batch
from engine_shim.cudastream import MAX_CONNECTIONS, TO_DEVICE, CudaStream
from engine_shim.errors import DaemonUnreachable, ShimError, StreamStuck
from engine_shim.handshake import Interrupted
from engine_shim.selftest.arena import WORD, Arena
from engine_shim.selftest.report import Latency, latency_of
from engine_shim.session import Session
from engine_shim.ticket import Ticket
from hostflag.verdicts import Loss, Skip, Verdict


WAIT_S: Final = 2.0  # a round takes microseconds; a stream that needs so long does not move
SLICE_S: Final = 0.02  # of a wait: so soon it is seen that it is over
STARVED_S: Final = 0.02  # until a step is submitted again that a starved watchdog refused
LOOKS: Final = 3  # at streams beside a parked one: a machine that was busy elsewhere is so once, a shared queue is shared each time
NO_ANSWER: Final = {Verdict.LOST, Verdict.DISCONNECTED, Verdict.DRAINING}  # how rounds end without a daemon that serves
OF_THE_DEVICE: Final = {Loss.EXPIRIES, Loss.GARBAGE}  # its words may have come wrong: no reason to try for ever
NO_DAEMON: Final = {Skip.NO_SESSION, Skip.DRAINING}
Place: TypeAlias = tuple[CudaStream, int, int]  # a stream, memory of the device, pinned memory


class Failed(ShimError):
    """A step of the self-test failed; the message says how."""


class Stuck(Failed, StreamStuck):
    """And what it used must be kept: the device may still come to it."""


class NothingLearned(DaemonUnreachable):
    """The daemon went away, drained or fell silent meanwhile, or this process is short of something: the device is not to blame."""


class Rounds:
    """
    Steps one after the other in one session, up to ``lanes`` of them in flight.

    ``over``: once it is true Interrupted is raised. Not from two waits, which end by themselves: for a round that is timed, and for streams
    whose memory is given back next.
    """

    def __init__(
        self, stream: CudaStream, session: Session, arena: Arena, lanes: int, over: Callable[[], bool]
    ) -> None:
        self._over = over
        self._stream = stream
        self._session = session
        self._arena = arena
        self._lanes = lanes
        self._number = 0
        self._starved_s = 0.0  # in all
        self._flying: list[tuple[int, Ticket, int, list[list[int]]]] = []  # step, ticket, marker, expected
        self._before: dict[int, list[list[int]]] = {}  # by slot: what its last round was answered

    def prove(self, count: int) -> str:
        """Do ``count`` rounds and hold every draft against what was sent. Raises Failed."""
        for _ in range(count):
            if len(self._flying) == self._lanes:
                self._land()
            self._start()
        while self._flying:
            self._land()
        return f"{count} rounds of {self._arena.requests} requests, every draft as it had to be"

    def pass_by(self, others: Sequence[CudaStream]) -> str:
        """
        Have other streams do something while a round is parked. Raises Failed where some of them stand still until its release.

        Where some do, all are looked at again: a machine that is busy elsewhere is so once. Which of them share the parked one's queue changes
        from look to look where there are few, but each time some do.
        """
        with _places_on(others) as places:
            first, took_us = self._stand_still(places)
            left = first
            for _ in range(LOOKS - 1):
                if left:
                    left, took_us = self._stand_still(places)
        if left:
            raise Failed(
                f"{len(left)} of {len(others)} other streams stood still while one was parked, {LOOKS} times out of {LOOKS} "
                f"({MAX_CONNECTIONS} is {os.environ.get(MAX_CONNECTIONS, 'unset')}): {_more_connections()}"
            )
        slow = f", {len(first)} of them only when all were looked at again" if first else ""
        return f"{len(others)} others went on beside a parked one{slow}, the last after {took_us:.0f} us"

    def _stand_still(self, places: Sequence[Place]) -> tuple[Sequence[Place], float]:
        """Return which of these streams are not through before the parked one is released; and what it took, us."""
        self._park()
        began = time.perf_counter()
        marks = [_busy(*place) for place in places]
        try:
            left = self._who_waits(places, marks)
            took_us = (time.perf_counter() - began) * 1e6
            self._land()
        except (NothingLearned, Interrupted):
            self._all_arrived(places)  # what they use is given back next
            raise
        self._all_arrived(places)
        return left, took_us

    def _who_waits(self, places: Sequence[Place], marks: Sequence[int]) -> Sequence[Place]:
        left = places
        while left:
            self._go_on()
            waiting = [place for place, mark in zip(places, marks, strict=True) if not place[0].reached(mark)]
            # Looked at after them: who came through with the release has not gone on beside the park. The verdict comes before the
            # release; consumed comes behind it, maybe later than whoever was held up.
            if self._session.verdict(self._parked) is not Verdict.OPEN:
                break
            left = waiting
        return left

    def load_a_module(self) -> str:
        """Load a module that is new while a round is parked. Raises Failed."""
        self._park()
        began = time.perf_counter()
        self._stream.load_module()
        took_ms = (time.perf_counter() - began) * 1e3
        parked = not self._session.consumed(self._parked)
        self._land()
        return f"a module load returned after {took_ms:.1f} ms, {'before' if parked else 'with'} the release of the parked round"

    def measure(self, count: int, *, empty: bool = False) -> Latency:
        """Time ``count`` rounds of the arena's step, or empty ones, one after the other. Raises Failed."""
        nobody = Batch(1)
        nobody.empty = True
        batch = nobody if empty else self._arena.batch
        submits, totals = [], []
        for _ in range(count):
            number, self._number = self._number, self._number + 1
            self._arena.stage(number)
            self._reached(self._stream.marker())
            began = time.perf_counter_ns()
            ticket = self._submit(batch)
            submitted = time.perf_counter_ns()
            round_ = self._round(ticket)
            until = began + int(WAIT_S * 1e9)
            while not self._session.consumed(round_):
                if time.perf_counter_ns() > until:
                    self._look_for_an_answer(round_)
                    raise Stuck(f"round {round_} was not consumed within {WAIT_S:g} s")
            totals.append(time.perf_counter_ns() - began)
            submits.append(submitted - began)
        return latency_of(submits, totals)

    def _start(self) -> None:
        number, self._number = self._number, self._number + 1
        expected = self._arena.stage(number)
        ticket = self._submit(self._arena.batch)
        self._round(ticket)
        self._flying.append((number, ticket, self._arena.fetch(number), expected))

    def _park(self) -> None:
        """Start a step, and wait until the stream is parked for it."""
        self._start()
        self._await(lambda: self._session.word("gathered") == self._parked, "gathered")

    @property
    def _parked(self) -> int:
        """The round in flight, where it is one."""
        return self._round(self._flying[0][1])

    def _land(self) -> None:
        number, ticket, marker, expected = self._flying[0]
        round_ = self._round(ticket)
        self._reached(marker, round_)
        del self._flying[0]
        self._await(lambda: self._session.verdict(round_) is not Verdict.OPEN, "decided")
        verdict = self._session.verdict(round_)
        if verdict in NO_ANSWER:
            raise self._gone(f"round {round_} ended {verdict.name}")
        if verdict is Verdict.TIMEOUT:  # the device's part was done: the daemon answers such a round itself
            raise _silent(f"round {round_} ended TIMEOUT")
        if verdict is not Verdict.OK:
            raise Failed(f"round {round_} ended {verdict.name if verdict else 'nowhere'}, not OK")
        found = self._arena.returned(number)
        slot = round_ % self._session.geometry.slots
        before, self._before[slot] = self._before.get(slot), expected
        if found != expected:
            raise Failed(f"round {round_}: {_what_went_wrong(found, expected, before)}")

    def _all_arrived(self, places: Sequence[Place]) -> None:
        for other, _, _ in places:
            if not other.wait(other.marker(), WAIT_S):
                raise Stuck(f"a stream beside the parked one was not done {WAIT_S:g} s after that went on")

    def _submit(self, batch: Batch) -> Ticket:
        """Submit a step; again where the watchdog was starved: a machine that is busy elsewhere is so for a moment, or says nothing else."""
        self._go_on()
        while (ticket := self._session.submit(batch)).skip is Skip.WATCHDOG:
            self._go_on()
            if self._starved_s >= WAIT_S:
                raise NothingLearned(
                    f"the watchdog was starved for {WAIT_S:g} s: this machine is too busy to try the device now"
                )
            time.sleep(STARVED_S)
            self._starved_s += STARVED_S
        return ticket

    def _round(self, ticket: Ticket) -> int:
        if ticket.round is not None:
            return ticket.round
        if ticket.skip in NO_DAEMON:
            raise self._gone(f"a step made no round: {ticket.skip.name}")
        raise Failed(f"a step made no round: {ticket.skip.name}")

    def _gone(self, what: str) -> NothingLearned:
        lost = self._session.lost
        if lost in OF_THE_DEVICE:
            raise Failed(f"the session was lost ({lost.name}), {what}")
        how = f"was lost ({lost.name})" if lost else "drains"
        return NothingLearned(
            f"the daemon went away during the self-test, which says nothing of the device: the session {how}, {what}"
        )

    def _look_for_an_answer(self, round_: int) -> None:
        """Raise NothingLearned where the stream waits for ``round_`` as it should: it is the daemon that does not move."""
        if self._session.word("gathered") == round_ and self._session.verdict(round_) is Verdict.OPEN:
            raise _silent(f"round {round_} had no answer within {WAIT_S:g} s")

    def _reached(self, marker: int, round_: int | None = None) -> None:
        """Wait for a marker, which is behind ``round_`` where one is named."""
        until = time.monotonic() + WAIT_S
        while not self._stream.wait(marker, SLICE_S):
            self._go_on()
            if time.monotonic() < until:
                continue
            if round_ is not None:
                self._look_for_an_answer(round_)
            raise Stuck(f"the stream does not move: it was not past a round {WAIT_S:g} s after it was submitted")

    def _await(self, there: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + WAIT_S
        while not there():
            self._go_on()
            if time.monotonic() > until:
                raise Stuck(f"a round was not {what} within {WAIT_S:g} s: the stream does not move")
            time.sleep(50e-6)

    def _go_on(self) -> None:
        """Raise Interrupted where it is over. Nobody waits for what is parked then: it is released."""
        if self._over():
            self._session.give_up()
            raise Interrupted


@contextlib.contextmanager
def _places_on(others: Sequence[CudaStream]) -> Iterator[Sequence[Place]]:
    """Give memory for each; it goes back at the end, unless the device may still come to it."""
    places = [(other, other.alloc(WORD), other.host_alloc(2 * WORD)) for other in others]
    stuck = False
    try:
        yield places
    except Stuck:
        stuck = True
        raise
    finally:
        for other, memory, pinned in () if stuck else places:
            other.free(memory)
            other.host_free(pinned)


def _busy(other: CudaStream, memory: int, pinned: int) -> int:
    """Enqueue what a stream is to get past, a word as rounds write them and a copy; return its marker."""
    other.write_word(pinned + WORD, 1)
    other.copy(memory, pinned, WORD, TO_DEVICE)
    return other.marker()


def _silent(what: str) -> NothingLearned:
    return NothingLearned(
        f"the daemon fell silent during the self-test, which says nothing of the device: {what}. Is it stopped or overloaded?"
    )


def _more_connections() -> str:
    """Return what there is to do where streams share a queue."""
    if MAX_CONNECTIONS in os.environ:
        return "unset it, or raise it (32 is the most)"
    return "set it to 32, the most there are"


def _what_went_wrong(found: list[list[int]], expected: list[list[int]], before: list[list[int]] | None) -> str:
    wrong = [index for index, (got, due) in enumerate(zip(found, expected, strict=True)) if got != due]
    if before is not None and all(found[index] == before[index] for index in wrong):
        return f"the drafts of request {wrong[0]} are those of the slot's round before: the stream went on before the reply was there"
    return f"the drafts of request {wrong[0]} do not follow from its rows: gathered was seen before the rows were there, or a copy went wrong"
