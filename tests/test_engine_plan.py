# SPDX-License-Identifier: Apache-2.0
"""
What a submit ships, over many random steps and against a model: every row leaves once, in order, or is counted.

The planner is the C code itself; the model follows its pieces with labelled rows instead of bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest

from engine_native import native
from hypothesis import given, settings
from hypothesis import strategies as st


Label = tuple[int, int, int]  # request slot, generation, position
SLOTS = 8
REQUESTS = 4
WINDOW = 16


@dataclass(frozen=True)
class Step:
    """One request's part of a step."""

    slot: int
    rows: int
    prefill: bool
    to_come: int = 0
    draft: bool = True


class Planner:
    """The C planner with its ring and backlog, and the labels of every row in the backlog's memory."""

    def __init__(self, ring_bytes: int, capacity: int, window: int = WINDOW) -> None:
        module = native()
        self.ffi, self.lib = module.ffi, module.lib
        self.geometry: Any = self.ffi.new(
            "struct hf_geometry *",
            {
                "slots": SLOTS, "max_requests": REQUESTS, "state_slots": REQUESTS, "row_bytes": 96,
                "window": window, "drafts": 3, "vocab": 100, "ring_bytes": ring_bytes,
            },
        )  # fmt: skip
        self.ring: Any = self.ffi.new("struct hfe_ring *")
        self.backlog: Any = self.ffi.new("struct hfe_backlog *")
        self.plan: Any = self.ffi.new("struct hfe_plan *")
        self.lib.hfe_ring_init(self.ring, ring_bytes, SLOTS, 0)
        assert self.lib.hfe_backlog_init(self.backlog, self.geometry, capacity, self.ffi.NULL) == 0
        assert self.lib.hfe_plan_init(self.plan, self.geometry, self.ring, self.backlog) == 0
        self.memory: list[Label | None] = [None] * capacity
        self.round = 0
        self.retired = 0
        self.shipped: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.pieces: dict[int, tuple[int, int]] = {}

    def close(self) -> None:
        self.lib.hfe_plan_done(self.plan)
        self.lib.hfe_backlog_done(self.backlog)

    def retire(self, count: int) -> None:
        self.retired = min(self.retired + count, self.round)
        self.lib.hfe_ring_free(self.ring, self.retired)
        self.pieces = {t: piece for t, piece in self.pieces.items() if t > self.retired}

    def step(
        self, steps: list[Step], generations: dict[int, int], first: dict[int, int], *, drafts: bool = True
    ) -> Any:
        """Plan a step and follow what it says. ``first``: position of each slot's first row."""
        ffi = self.ffi
        requests = ffi.new("struct hfe_request[]", max(1, len(steps)))
        labels: list[Label] = []
        for index, one in enumerate(steps):
            flags = (self.lib.HFE_DRAFT if one.draft else 0) | (self.lib.HFE_PREFILL if one.prefill else 0)
            requests[index] = (one.slot, generations[one.slot], len(labels), one.rows, flags, one.to_come)
            labels += [(one.slot, generations[one.slot], first[one.slot] + offset) for offset in range(one.rows)]
        batch = ffi.new("struct hfe_batch *", {"n_requests": len(steps), "requests": requests})
        if drafts:
            batch.drafts_out = ffi.cast("int64_t *", 8)
        free = SLOTS - (self.round - self.retired)
        self.lib.hfe_plan_make(self.plan, batch, free, self.lib.HF_SKIP_NONE)
        assert self.plan.n_rounds <= free
        for planned in self.plan.round[0 : self.plan.n_rounds]:
            self._follow(planned, labels)
        for move in self.plan.deferral[0 : self.plan.n_deferrals]:
            for offset in range(move.rows):
                self.memory[move.start + offset] = labels[getattr(move, "from") + offset]
        return self.plan

    def _follow(self, planned: Any, labels: list[Label]) -> None:
        self.round += 1
        rows: list[Label | None] = []
        for piece in self.plan.piece[planned.first_piece : planned.first_piece + planned.n_pieces]:
            begin = getattr(piece, "from")
            rows += (self.memory if piece.backlog else labels)[begin : begin + piece.rows]
        assert len(rows) == planned.n_rows
        at = 0
        keys = set()
        for one in self.plan.request[planned.first_request : planned.first_request + planned.n_requests]:
            key = (one.request_slot, one.generation)
            assert key not in keys, "a request stands in a round once"
            keys.add(key)
            assert one.first_row == at
            for label in rows[at : at + one.rows]:
                assert label is not None
                assert label[:2] == key, "the row of another request"
                self.shipped[key].append(label[2])
            at += one.rows
        assert at == planned.n_rows
        for offset, size in self.pieces.values():
            assert planned.ring_bytes == 0 or size == 0 or (
                planned.ring_offset + planned.ring_bytes <= offset or offset + size <= planned.ring_offset
            )  # fmt: skip
        assert planned.ring_offset + planned.ring_bytes <= self.geometry.ring_bytes
        self.pieces[self.round] = (planned.ring_offset, planned.ring_bytes)


CHUNKS = st.lists(
    st.fixed_dictionaries(
        {
            "active": st.lists(st.integers(0, REQUESTS - 1), min_size=0, max_size=REQUESTS, unique=True),
            "rows": st.lists(st.integers(1, 24), min_size=REQUESTS, max_size=REQUESTS),
            "prefill": st.lists(st.booleans(), min_size=REQUESTS, max_size=REQUESTS),
            "fresh": st.lists(st.sampled_from([False, False, False, True]), min_size=REQUESTS, max_size=REQUESTS),
            "to_come": st.sampled_from([0, 0, 5, 15, 16, 40]),
            "retire": st.integers(0, 6),
            "drafts": st.booleans(),
        }
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(
    ring_bytes=st.sampled_from([4096, 8192, 1 << 16]), capacity=st.sampled_from([0, 7, 64]), steps=CHUNKS,
)  # fmt: skip
def test_every_row_leaves_once_and_in_order_or_is_counted(
    ring_bytes: int, capacity: int, steps: list[dict[str, Any]]
) -> None:
    planner = Planner(ring_bytes, capacity)
    generations = dict.fromkeys(range(REQUESTS), 1)
    position = dict.fromkeys(range(REQUESTS), 0)
    wanted = left_out = 0
    try:
        for step in steps:
            planner.retire(step["retire"])
            chosen = []
            for slot in step["active"]:
                if step["fresh"][slot]:
                    generations[slot] += 1
                    position[slot] = 0
                prefill = step["prefill"][slot]
                rows = step["rows"][slot] if prefill else min(step["rows"][slot], 4)
                chosen.append(Step(slot, rows, prefill, step["to_come"] if prefill else 0))
                matter = max(0, min(rows, WINDOW - step["to_come"])) if prefill else rows
                wanted += matter
            plan = planner.step(chosen, generations, position, drafts=step["drafts"])
            left_out += plan.left_out
            for one in chosen:
                position[one.slot] += one.rows
            waiting = planner.backlog.waiting_rows
            sent = sum(len(positions) for positions in planner.shipped.values())
            assert sent + waiting + left_out == wanted
            for positions in planner.shipped.values():
                assert positions == sorted(set(positions)), "rows of a request leave in order, and once"
            if plan.drafting:
                main = plan.round[plan.n_rounds - 1]
                table = plan.request[main.first_request : main.first_request + main.n_requests]
                assert [one.request_slot for one in table] == [one.slot for one in chosen]
                assert [one.batch_index for one in table] == list(range(len(chosen)))
                for one in table:
                    waits = planner.backlog.waiting[one.request_slot].rows > 0
                    assert bool(one.flags & planner.lib.HF_REQUEST_DRAFT) is not waits
        for _ in range(200):  # an idle engine that flushes, a daemon that keeps up
            planner.retire(SLOTS)
            planner.step([], generations, position)
            if planner.backlog.waiting_rows == 0:
                break
        assert planner.backlog.waiting_rows == 0, "what waits is shipped in the end"
        sent = sum(len(positions) for positions in planner.shipped.values())
        assert sent + left_out == wanted
    finally:
        planner.close()


@settings(max_examples=200, deadline=None)
@given(
    prompts=st.lists(st.integers(0, 24), min_size=2, max_size=2),
    decodes=st.lists(st.integers(1, 4), min_size=2, max_size=2),
    steps=st.integers(1, 12),
)
def test_prefill_never_keeps_a_decode_out(prompts: list[int], decodes: list[int], steps: int) -> None:
    """Two steps are in flight, as in an asynchronous engine; the ring holds four full steps."""
    planner = Planner(ring_bytes=8192, capacity=64)
    generations = dict.fromkeys(range(REQUESTS), 1)
    position = dict.fromkeys(range(REQUESTS), 0)
    ends: list[int] = []
    try:
        for number in range(steps):
            if len(ends) >= 2:
                planner.retire(ends[-2] - planner.retired)
            chosen = [Step(slot, decodes[slot], prefill=False) for slot in range(2)]
            for slot in (2, 3):
                if prompts[slot - 2]:
                    generations[slot] += 1
                    position[slot] = 0
                    chosen.append(Step(slot, prompts[slot - 2], prefill=True, draft=number % 2 == 0))
            plan = planner.step(chosen, generations, position)
            assert plan.drafting, f"step {number}: skip {plan.skip}"
            main = plan.round[plan.n_rounds - 1]
            table = plan.request[main.first_request : main.first_request + main.n_requests]
            assert [one.rows for one in table[0:2]] == decodes
            for one in chosen:
                position[one.slot] += one.rows
            ends.append(planner.round)
    finally:
        planner.close()


@pytest.mark.parametrize(
    ("free", "context"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 3), (8, 4)]
)  # fmt: skip
def test_slots_are_left_for_the_main_round_and_the_next_step(free: int, context: int) -> None:
    """Prompts larger than the ring take as many context-only rounds as they may."""
    planner = Planner(ring_bytes=1 << 16, capacity=600, window=200)
    try:
        planner.round = SLOTS - free
        planner.ring.oldest = planner.ring.next = planner.round + 1
        steps = [Step(0, 1, prefill=False)] + [Step(slot, 200, prefill=True) for slot in (1, 2, 3)]
        plan = planner.step(steps, dict.fromkeys(range(REQUESTS), 1), dict.fromkeys(range(REQUESTS), 0))
        assert plan.drafting
        assert plan.n_rounds - 1 == context
        assert plan.deferred > 0
    finally:
        planner.close()


@pytest.mark.parametrize(
    ("rows", "fits"), [((2**31 - 1, 0), True), ((2**31, 0), False), ((2**31, 2**31), False), ((2**31 - 1, 1), False)]
)
def test_rows_that_cannot_be_counted_are_no_batch(rows: tuple[int, int], fits: bool) -> None:
    """Their sum neither wraps around nor turns negative."""
    planner = Planner(1 << 16, 64)
    ffi = planner.ffi
    requests = ffi.new("struct hfe_request[]", [{"request_slot": i, "rows": n} for i, n in enumerate(rows)])
    sources, memory = ffi.new("struct hfe_source[]", [{"width": 96}]), ffi.new("char[]", 8)
    batch = ffi.new("struct hfe_batch *", {"n_requests": 2, "n_sources": 1, "requests": requests, "sources": sources})
    batch.positions, batch.tokens, batch.num_rejected = (ffi.cast("void *", memory) for _ in range(3))
    assert bool(planner.lib.hfe_plan_accepts(planner.plan, batch)) is fits
