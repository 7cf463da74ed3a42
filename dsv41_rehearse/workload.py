# SPDX-License-Identifier: Apache-2.0
"""Which requests come, and when: pieces of the text, spread so that together they cover it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsv41_rehearse.replay import Request
from dsv41_rehearse.scenario import CACHE_BLOCK, Scenario


# Shares of the longest request, so that requests finish at different times and slots change hands.
_LENGTHS: Final = (1.0, 1.0, 0.25, 0.75, 0.5, 0.25)
# Prompts of several chunks, of one, and of a part of one.
_PROMPTS: Final = (1.0, 2.5, 2.5, 0.5, 1.0, 4.0)
# Starts as shares of what is left of the text: the whole of it is replayed by the first few.
_STARTS: Final = (0.0, 1.0, 1.0, 0.5, 0.75, 0.25)


def requests(scenario: Scenario) -> Iterator[Request]:
    """
    Yield the requests in the order of their arrival; without end where the scenario counts rounds.

    Every third request starts where the one before it did, with the same prompt: a prefix-cache hit.
    """
    uid = 0
    while scenario.rounds is not None or uid < scenario.requests:
        yield request(scenario, uid)
        uid += 1


def request(scenario: Scenario, uid: int) -> Request:
    """Return request number ``uid``: a function of the scenario alone."""
    text_tokens = len(scenario.text)
    lap, shape = divmod(uid, len(_LENGTHS))
    longest = min(scenario.length, text_tokens)
    length, prompt = longest, scenario.prompt
    if not scenario.uniform:
        length = max(min(longest, 32), int(longest * _LENGTHS[shape]))
        prompt = min(int(prompt * _PROMPTS[shape]), length // 2)
    prompt = max(1, min(prompt, length - 1))
    # Each lap starts a little further on, so that a long run does not replay the same pieces for ever.
    start = (_STARTS[shape] + 0.0371 * lap) % 1.0 if lap else _STARTS[shape]
    text_at = int((text_tokens - longest) * start)
    return Request(uid=uid, text_at=text_at, length=length, prompt=prompt, arrival=uid * scenario.arrival_steps)


class PrefixCache:
    """What the stand-in's prefix cache would hold: whole blocks from the start of a prompt that was run."""

    def __init__(self) -> None:
        self._run: dict[int, int] = {}

    def ran(self, request: Request, tokens: int) -> None:
        """Note that the first ``tokens`` of a request were run."""
        self._run[request.text_at] = max(tokens, self._run.get(request.text_at, 0))

    def hit(self, request: Request) -> int:
        """Return how many tokens of a request that starts now need not be run."""
        if request.preemptions:
            # Under the pressure that preempted it, half of its blocks were taken away.
            return request.known // 2 // CACHE_BLOCK * CACHE_BLOCK
        held = min(self._run.get(request.text_at, 0), request.prompt - 1)
        return held // CACHE_BLOCK * CACHE_BLOCK
