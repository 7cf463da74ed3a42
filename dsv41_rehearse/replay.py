# SPDX-License-Identifier: Apache-2.0
"""A request: its piece of the text, and how far the CPU knows it to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class State(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    LEAVING = "leaving"  # preempted; steps that were launched with it are still in flight
    DONE = "done"


@dataclass
class Request:
    """
    Replays ``text[text_at : text_at + length]``: the first ``prompt`` tokens are given, the others generated.

    Positions count from 0 at ``text_at``. ``known``: tokens the CPU has seen, prompt included; the device may be ahead
    by what is ``in_flight`` (steps launched with it whose results are not in).
    """

    uid: int
    text_at: int
    length: int
    prompt: int
    arrival: int  # step
    state: State = State.WAITING
    slot: int = -1
    generation: int = 0
    known: int = 0
    cursor: int = 0  # next prompt token to prefill
    cached: int = 0  # tokens that the prefix cache had at the last (re-)start
    prefill_end: int = 0
    in_flight: int = 0
    promised: int = 0  # of those, steps that give a token at least
    preemptions: int = 0
    verified_steps: int = 0
    accepted: int = 0
    output: bytearray = field(default_factory=bytearray)

    def start(self, slot: int, generation: int, cached: int) -> None:
        """Take a slot. What the cache holds is not run again; a preempted request runs what it had generated as prompt."""
        self.state = State.PREFILL
        self.slot, self.generation = slot, generation
        self.known = max(self.known, self.prompt)
        self.prefill_end = self.known
        self.cached = self.cursor = min(cached, self.prefill_end - 1)

    def leave(self) -> None:
        """Give the slot up: preempted."""
        self.state = State.LEAVING if self.in_flight else State.WAITING
        self.preemptions += 1
        self.slot = -1

    def shorten(self) -> None:
        """Stop as soon as what is known is out, for a run that ends with a number of rounds."""
        self.length = max(self.known, self.prompt + 1)

    def at_least(self) -> int:
        """Tokens it will have once what is in flight is in: a decode step gives one token at least."""
        return self.known + self.promised

    def take(self, tokens: list[int], accepted: int | None) -> int:
        """
        Take what a step emitted; ``accepted`` drafts of them, None for a prefill. Returns how many tokens counted.

        What goes past the length is dropped: the step was launched before the CPU knew.
        """
        room = self.length - self.known
        kept = tokens[:room]
        self.output += bytes(kept)
        self.known += len(kept)
        if accepted is not None:
            self.verified_steps += 1
            self.accepted += min(accepted, len(kept))
        return len(kept)

    @property
    def finished(self) -> bool:
        """Whether every token is out."""
        return self.known >= self.length

    def matches(self, text: bytes) -> bool:
        """Whether the output is the text, byte for byte."""
        return self.output == text[self.text_at + self.prompt : self.text_at + self.length]
