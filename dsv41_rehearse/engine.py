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

from dsv41_rehearse.device import STEPS_KEPT, Device, Outcome
from dsv41_rehearse.ledger import Ledger, SettledStep, SubmittedRound
from dsv41_rehearse.samples import Samples
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.scheduler import Item, Scheduler
from dsv41_rehearse.session import EngineSession
from dsv41_rehearse.workload import requests


IN_FLIGHT: Final = 2  # steps: what vLLM's engine core keeps with one pipeline stage
STUCK_S: Final = 60.0  # a stream that gets nowhere for so long is stuck: fail loudly


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
    """Runs a scenario over a session; after the session's loss it goes on without drafts."""

    def __init__(
        self, scenario: Scenario, device: Device, session: EngineSession, ledger: Ledger,
        watch: Callable[[Engine], None],
    ) -> None:  # fmt: skip
        self.scenario = scenario
        self.scheduler = Scheduler(scenario)
        self.tally = Tally()
        self._device = device
        self._session = session
        self._ledger = ledger
        self._watch = watch
        self._flying: deque[Flight] = deque()
        self._unsettled: deque[Flight] = deque()
        self._step = 0  # launched so far: device arguments and results are kept by it, so it never jumps
        self._clock = 0  # counts steps for the scheduler: jumps to the next arrival where nobody runs
        self._launched_ns = 0
        generated = [one.length - one.prompt for one in requests(scenario)] if scenario.rounds is None else []
        self._total_tokens = max(1, sum(generated))

    def run(self) -> None:
        """Run until every request is completed and every step settled."""
        while not self.scheduler.done or self._flying:
            items = self.scheduler.plan(self._clock)
            if items:
                self._launch(items)
            elif not self._flying:
                self._skip_to_arrival()
            if len(self._flying) >= IN_FLIGHT or not items:
                self._absorb()
            self._settle()
            self._watch(self)
        self._settle_rest()

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
        submission = self._session.submit(items)
        self.tally.submit_us.add(submission.taken_us)
        taken_marker = self._device.take(self._step, drafting=submission.drafting is not None)
        self.tally.steps += 1
        self.tally.batch.add(len(items))
        self.tally.rows_shipped += submission.rows
        wanted = any(item.draft for item in items)
        if submission.drafting is None and wanted:
            self.tally.target_only_steps += 1
            self.tally.skipped[submission.skip] += 1
        flight = Flight(self._step, items, tokens_marker, taken_marker, submission.rounds)
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
        for index, item in enumerate(flight.items):
            outcome = self._device.outcome(flight.step, index)
            flight.outcomes.append(outcome)
            accepted = None if item.prefill else len(outcome.tokens) - 1
            self.tally.tokens += self.scheduler.absorb(item, outcome.tokens, accepted)

    def _wait(self, marker: int) -> None:
        # Short waits: a signal is noticed between them.
        until = time.monotonic() + STUCK_S
        while not self._device.stream.wait(marker, 0.1):
            if time.monotonic() > until:
                raise StreamStuckError(f"the stream is stuck for {STUCK_S:g} s; state: {self._session.status()}")

    def _settle(self) -> None:
        """Book the steps of which everything is known, in order."""
        while self._unsettled and self._unsettled[0].outcomes:
            flight = self._unsettled[0]
            if not self._device.stream.reached(flight.taken_marker):
                return
            # Soon its results would make room for a later step's; a context-only round may then still be open.
            must = self._step - flight.step >= STEPS_KEPT - IN_FLIGHT
            if not self._session.decided(flight.rounds) and not must:
                return
            self._unsettled.popleft()
            self._book(flight)

    def _settle_rest(self) -> None:
        if self._unsettled:
            self._wait(self._unsettled[-1].taken_marker)
            self._session.wait_decided(self._unsettled[-1].rounds)
        while self._unsettled:
            self._book(self._unsettled.popleft())

    def _book(self, flight: Flight) -> None:
        rounds = self._session.with_verdicts(flight.rounds)
        self._session.settle()
        for submitted in rounds:
            if submitted.table.context_only:
                self.tally.context_rounds += 1
                continue
            self.tally.rounds[submitted.verdict] += 1
            if submitted.verdict == "OK":
                self._time(submitted.table.round)
            else:
                self.tally.target_only_steps += 1
        drafts = [self._device.drafts(flight.step, index) for index in range(len(flight.items))]
        self._ledger.settle(SettledStep(flight.items, flight.outcomes, drafts, rounds))
        made = sum(self.tally.rounds.values())
        if self.scenario.rounds is not None and made >= self.scenario.rounds:
            self.scheduler.close()

    def _time(self, drafting_round: int) -> None:
        us = self._session.round_us(drafting_round)
        if us is not None:
            self.tally.round_us.add(us)

    @property
    def lost(self) -> str | None:
        """Why the session was lost, None while it is there."""
        return self._session.lost

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
