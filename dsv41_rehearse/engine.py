# SPDX-License-Identifier: Apache-2.0
"""
The engine thread: plan a step, launch it, hand its round over, take the results of the step before.

As in asynchronous scheduling, step n + 1 is launched before the results of step n are known: two steps are in flight. A
step's tokens leave before its round parks the stream, so three rounds can be.
"""

from __future__ import annotations

import time

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dsv41_rehearse.books import Books
from dsv41_rehearse.device import STEPS_KEPT, Device, Outcome
from dsv41_rehearse.drafting import Drafting
from dsv41_rehearse.ledger import SettledStep, SubmittedRound
from dsv41_rehearse.samples import Samples
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.scheduler import Item, Scheduler
from dsv41_rehearse.sessions import FellBack, Release, Sessions
from dsv41_rehearse.timeline import Timeline
from dsv41_rehearse.workload import requests


IN_FLIGHT: Final = 2  # steps: what vLLM's engine core keeps with one pipeline stage
BY_WATCHDOG: Final = {"LOST", "EXPIRED"}
STUCK_S: Final = 60.0  # a stream that gets nowhere for so long is stuck: fail loudly
ROUNDLESS_S: Final = 60.0  # no round for so long: those that are wanted still do not come


class StreamStuckError(Exception):
    """The stream does not get past a step; memory it may still use is kept."""


@dataclass
class Flight:
    """A step that was launched."""

    step: int
    items: list[Item]
    tokens_marker: int
    taken_marker: int
    rounds: Sequence[SubmittedRound]
    session: int | None
    left_out: bool
    outcomes: list[Outcome] = field(default_factory=list)


@dataclass
class Tally:
    """What the run counted."""

    steps: int = 0
    target_only_steps: int = 0
    tokens: int = 0
    rounds: Counter[str] = field(default_factory=Counter)  # drafting rounds by verdict
    context_rounds: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    rows_shipped: int = 0
    batch: Samples = field(default_factory=Samples)
    submit_us: Samples = field(default_factory=Samples)
    round_us: Samples = field(default_factory=Samples)
    step_ms: Samples = field(default_factory=Samples)


class Engine:
    """
    Runs a scenario. Without a session it goes on without drafts.

    ``sessions`` is told what becomes of rounds. ``roundless`` once rounds were wanted and none came any more. ``hold``: while it says so, there are further requests after the scenario's.
    """

    def __init__(
        self, scenario: Scenario, device: Device, drafting: Drafting, books: Books, watch: Callable[[Engine], None], *,
        sessions: Sessions | None = None, hold: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.scenario = scenario
        self.scheduler = Scheduler(scenario)
        self.tally = Tally()
        self.timeline = Timeline(time.monotonic_ns())
        self._device = device
        self._drafting = drafting
        self._books = books
        self._watch = watch
        self._sessions = sessions or Sessions()
        self._hold = hold
        self._flying: deque[Flight] = deque()
        self._unsettled: deque[Flight] = deque()
        self._step = 0  # launched so far: device arguments and results are kept by it, so it never jumps
        self._clock = 0  # counts steps for the scheduler: jumps to the next arrival where nobody runs
        self._launched_ns = 0
        self.roundless = False
        self._round_at = time.monotonic()
        generated = [one.length - one.prompt for one in requests(scenario)] if scenario.rounds is None else []
        self._total_tokens = max(1, sum(generated))

    def run(self) -> None:
        """Run until every request is completed and every step settled. What rounds are missing after ``ROUNDLESS_S`` are given up."""
        self._round_at = time.monotonic()
        while self._going_on():
            items = self.scheduler.plan(self._clock)
            if items:
                self._launch(items)
            elif not self._flying:
                self._skip_to_arrival()
            if len(self._flying) >= IN_FLIGHT or not items:
                self._absorb()
            self._settle()
            self._give_up()
            self._watch(self)
        self._settle_rest()

    def _going_on(self) -> bool:
        if self.scheduler.done and not self._flying:
            if not self._hold():
                return False
            self.scheduler.more()
        return True

    def _give_up(self) -> None:
        wanted = self.scenario.rounds is not None and not self.roundless
        if wanted and time.monotonic() - self._round_at > ROUNDLESS_S and not self._hold():
            self.roundless = True
            self.scheduler.close()

    def _skip_to_arrival(self) -> None:
        """Nobody runs: time is counted in steps, so the next request comes now."""
        arrival = self.scheduler.next_arrival()
        self._clock = max(self._clock + 1, arrival or 0)

    def _launch(self, items: list[Item]) -> None:
        now = time.monotonic_ns()
        if self._launched_ns:
            self.tally.step_ms.add((now - self._launched_ns) / 1e6)
        self._launched_ns = now
        self._launch_work()
        tokens_marker = self._device.launch(self._step, items)
        submission = self._drafting.submit(items)
        self.tally.submit_us.add(submission.taken_us)
        taken_marker = self._device.take(self._step, drafting=submission.drafting)
        self.tally.steps += 1
        self.tally.batch.add(len(items))
        self.tally.rows_shipped += submission.rows
        wanted = any(item.draft for item in items)
        if wanted and not submission.drafting:
            self.tally.target_only_steps += 1
            self.tally.skipped[submission.skip] += 1
        flight = Flight(
            self._step, items, tokens_marker, taken_marker, submission.rounds, submission.session, submission.left_out
        )
        self._flying.append(flight)
        self._unsettled.append(flight)
        self._step += 1
        self._clock += 1

    def _launch_work(self) -> None:
        """What a CPU does to launch a step's kernels."""
        seconds = self.scenario.cpu_ms / 1e3
        if self.scenario.cpu_load == "sleep":
            time.sleep(seconds)
            return
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    def _absorb(self) -> None:
        """Wait for the oldest step's tokens and take them."""
        if not self._flying:
            return
        flight = self._flying.popleft()
        self._wait(flight.tokens_marker)
        all_accepted = verified = 0
        for index, item in enumerate(flight.items):
            outcome = self._device.outcome(flight.step, index)
            flight.outcomes.append(outcome)
            accepted = None if item.prefill else len(outcome.tokens) - 1
            self.tally.tokens += self.scheduler.absorb(item, outcome.tokens, accepted)
            all_accepted += accepted or 0
            verified += accepted is not None
        self.timeline.add(time.monotonic_ns(), all_accepted, verified)

    def _wait(self, marker: int) -> None:
        # Short waits: a signal is noticed between them.
        until = time.monotonic() + STUCK_S
        while not self._device.stream.wait(marker, 0.1):
            if time.monotonic() > until:
                raise StreamStuckError(f"the stream is stuck for {STUCK_S:g} s; state: {self._drafting.status()}")

    def _settle(self) -> None:
        """Book the steps of which everything is known, in order."""
        while self._unsettled and self._unsettled[0].outcomes:
            flight = self._unsettled[0]
            if not self._device.stream.reached(flight.taken_marker):
                return
            # Soon its results would make room for a later step's; a context-only round may then still be open.
            must = self._step - flight.step >= STEPS_KEPT - IN_FLIGHT
            if not self._drafting.decided(flight.rounds) and not must:
                return
            self._unsettled.popleft()
            self._book(flight)

    def _settle_rest(self) -> None:
        if self._unsettled:
            self._wait(self._unsettled[-1].taken_marker)
            self._drafting.wait_decided(self._unsettled[-1].rounds)
        while self._unsettled:
            self._book(self._unsettled.popleft())

    def _book(self, flight: Flight) -> None:
        rounds = self._drafting.with_verdicts(flight.rounds)
        self._drafting.settle()
        for submitted in rounds:
            if submitted.table.context_only:
                self.tally.context_rounds += 1
                continue
            self.tally.rounds[submitted.verdict] += 1
            self._round_at = time.monotonic()
            self.tally.target_only_steps += int(submitted.verdict != "OK")
            self._time(submitted, self._device.taken_ns(flight.step))
        drafts = [self._device.drafts(flight.step, index) for index in range(len(flight.items))]
        step = SettledStep(flight.items, flight.outcomes, drafts, rounds, flight.session, flight.left_out)
        self._books.settle(step)
        made = sum(self.tally.rounds.values())
        if self.scenario.rounds is not None and made >= self.scenario.rounds and not self._hold():
            self.scheduler.close()

    def _time(self, submitted: SubmittedRound, past_ns: int) -> None:
        record = self._drafting.record(submitted)
        if record is None or not record.gathered_ns:
            return
        decided_ns = record.timing.decided_ns
        if submitted.verdict == "OK" and decided_ns:
            # Decided just before the stream was released.
            self.tally.round_us.add((decided_ns - record.gathered_ns) / 1e3)
            self._sessions.drafted(submitted.session, record.gathered_ns, decided_ns)
        elif submitted.verdict in BY_WATCHDOG:
            self._sessions.released(Release(submitted.session, submitted.verdict, record.gathered_ns, past_ns))
        elif decided_ns:
            self._sessions.ended(FellBack(submitted.session, submitted.verdict, record.gathered_ns, decided_ns))

    @property
    def lost(self) -> str | None:
        """Why the last session was lost, None while there is one."""
        return self._drafting.lost

    def accepted_per_step(self) -> float:
        """Return the drafts accepted a verified request step, the bonus token not counted."""
        seen = (*self.scheduler.finished, *self.scheduler.running)
        steps = sum(request.verified_steps for request in seen)
        return sum(request.accepted for request in seen) / steps if steps else 0.0

    def progress(self) -> float:
        """Return how far the run is, from 0 to 1."""
        if self.scenario.rounds is not None:
            return min(1.0, sum(self.tally.rounds.values()) / self.scenario.rounds)
        return min(1.0, self.tally.tokens / self._total_tokens)
