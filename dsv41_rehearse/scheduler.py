# SPDX-License-Identifier: Apache-2.0
"""The scheduler: who is in the next step. It plans without the results of the step before, as asynchronous engines do."""

from __future__ import annotations

import itertools

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dsv41_rehearse.replay import Request, State
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.workload import PrefixCache, requests
from dsv41_rehearse.workload import request as make_request


_NOT_WORTH_IT: Final = 128  # tokens: a request that is so nearly done is not preempted


@dataclass(frozen=True)
class Item:
    """One request of a step. Slot and generation are those at the time: a request may have moved when results come."""

    request: Request
    slot: int
    generation: int
    first_row: int
    rows: int
    prefill: bool
    last_chunk: bool
    draft: bool
    first: int  # position of the first row of a prefill, -1 where only the device knows
    to_come: int
    prefill_end: int


@dataclass
class Counts:
    """What happened to requests so far."""

    submitted: int = 0
    completed: int = 0
    preempted: int = 0
    cache_hits: int = 0
    slot_reuses: int = 0
    prefill_chunks: int = 0
    identical: bool = True


class Scheduler:
    """Slots, generations, chunked prefill, prefix-cache hits, preemptions, finishes."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.counts = Counts()
        self.finished: list[Request] = []
        self._coming: Iterator[Request] = requests(scenario)
        self._waiting: deque[Request] = deque(itertools.islice(self._coming, 1))
        self._leaving: list[Request] = []
        self.running: list[Request] = []
        self._free = list(range(scenario.geometry().state_slots))
        self._generations = [0] * len(self._free)
        self._cache = PrefixCache()
        self._closing = False

    @property
    def done(self) -> bool:
        """Whether every request is completed."""
        return not (self.running or self._waiting or self._leaving)

    def more(self) -> None:
        """Bring one request more than the scenario has: somebody still needs a running engine."""
        self._waiting.append(make_request(self.scenario, self.counts.submitted))

    def close(self) -> None:
        """Admit nobody new and end the running requests where they are: the run has made its rounds."""
        self._closing = True
        self._coming = iter(())
        self._waiting = deque(request for request in self._waiting if request.preemptions)
        for request in (*self.running, *self._leaving, *self._waiting):
            request.shorten()

    def plan(self, step: int) -> list[Item]:
        """Return the step's batch, in batch order; empty where nobody can run."""
        self._readmit()
        for request in [request for request in self.running if request.finished]:
            self._finish(request)
        if self.scenario.preempt_every and step and step % self.scenario.preempt_every == 0:
            self._preempt()
        self._admit(step)
        items: list[Item] = []
        first_row = 0
        # Batch order is not arrival order, and changes: whoever relies on it is wrong.
        turn = step % max(1, len(self.running))
        for request in (*self.running[turn:], *self.running[:turn]):
            item = self._item(request, first_row)
            if item is not None:
                first_row += item.rows
                items.append(item)
        return items

    def absorb(self, item: Item, tokens: list[int], accepted: int | None) -> int:
        """Take the results of one request of a step. Returns how many tokens counted."""
        request = item.request
        request.in_flight -= 1
        request.promised -= int(bool(tokens))
        if request.state is State.DONE:
            return 0  # launched before the CPU knew that it was finished
        taken = request.take(tokens, accepted)
        if item.last_chunk or not item.prefill:
            self._cache.ran(request, request.known - 1)
        if request.finished and request.slot >= 0:
            self._finish(request)
        return taken

    def next_arrival(self) -> int | None:
        """Return the step at which the next request arrives, or None."""
        return self._waiting[0].arrival if self._waiting else None

    def _item(self, request: Request, first_row: int) -> Item | None:
        if request.state is State.PREFILL:
            rows = min(self.scenario.prefill_rows, request.prefill_end - request.cursor)
            first = request.cursor
            request.cursor += rows
            to_come = request.prefill_end - request.cursor
            last = to_come == 0
            self.counts.prefill_chunks += 1
            if last:
                request.state = State.DECODE
        elif request.at_least() >= request.length:
            return None  # what is in flight finishes it for sure
        else:
            rows, first, to_come, last = self.scenario.drafts + 1, -1, 0, False
        request.in_flight += 1
        prefill = first >= 0
        request.promised += int(last or not prefill)
        return Item(
            request, request.slot, request.generation, first_row, rows, prefill, last, last or not prefill, first, to_come,
            request.prefill_end,
        )  # fmt: skip

    def _admit(self, step: int) -> None:
        while self._waiting and len(self.running) < self.scenario.concurrency and self._waiting[0].arrival <= step:
            request = self._waiting.popleft()
            slot = self._free.pop(0)
            self._generations[slot] += 1
            self.counts.slot_reuses += int(self._generations[slot] > 1)
            if not request.preemptions:
                self.counts.submitted += 1
                self._waiting.extend(itertools.islice(self._coming, 1))
            request.start(slot, self._generations[slot], self._cache.hit(request))
            self.counts.cache_hits += int(request.cached > 0 and not request.preemptions)
            self.running.append(request)

    def _preempt(self) -> None:
        """Take the youngest decoding request out, as an engine that runs out of cache blocks does."""
        able = [r for r in self.running if r.state is State.DECODE and r.length - r.at_least() > _NOT_WORTH_IT]
        if not able:
            return
        request = able[-1]
        self._release(request)
        request.leave()
        self.counts.preempted += 1
        self._leaving.append(request)

    def _readmit(self) -> None:
        """Put preempted requests back in the queue, once all that was launched with them is known."""
        for request in [request for request in self._leaving if not request.in_flight]:
            self._leaving.remove(request)
            if request.finished:
                self._complete(request)
                continue
            request.state = State.WAITING
            self._waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.running.remove(request)
        # First in line again: slots are reused at once, as vLLM's are.
        self._free.insert(0, request.slot)

    def _finish(self, request: Request) -> None:
        self._release(request)
        self._complete(request)

    def _complete(self, request: Request) -> None:
        request.state = State.DONE
        request.slot = -1
        self.counts.completed += 1
        self.counts.identical &= request.matches(self.scenario.text.tokens)
        self.finished.append(request)
