# SPDX-License-Identifier: Apache-2.0
"""The stand-in's kernels and scheduler, without a session: drafts come from the test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dsv41_rehearse._standin import ffi, lib
from dsv41_rehearse.device import STEPS_KEPT, Device, RowSource
from dsv41_rehearse.scenario import Scenario
from dsv41_rehearse.scheduler import Item, Scheduler
from dsv41_rehearse.text import BUNDLED, Text, load


class ImmediateStream:
    """A stream whose operations run as they are enqueued: kernels by address, as the soft stream calls them."""

    def __init__(self) -> None:
        self.calls = 0

    def work(self, ns: int) -> None: ...

    def call(self, fn_address: int, arg_address: int) -> None:
        ffi.cast("void (*)(void *)", fn_address)(ffi.cast("void *", arg_address))
        self.calls += 1

    def marker(self) -> int:
        return self.calls

    def reached(self, marker: int) -> bool:
        return True

    def wait(self, marker: int, timeout_s: float) -> bool:
        return True


Drafter = Callable[[Item, int], list[int]]  # (item, position after the anchor) -> ids


def replay(scenario: Scenario, drafter: Drafter, *, in_flight: int = 2) -> tuple[Scheduler, list[list[Item]]]:
    """Run a scenario to its end with these drafts; the results of a step are taken in_flight steps later."""
    device = Device(scenario, ImmediateStream())
    scheduler = Scheduler(scenario)
    flying: list[tuple[int, list[Item]]] = []
    steps: list[list[Item]] = []
    step = 0
    while not scheduler.done or flying:
        items = scheduler.plan(step)
        if items:
            device.launch(step, items)
            for index, item in enumerate(items):
                outcome = device.outcome(step, index)
                anchor = outcome.position + (item.rows if item.prefill else len(outcome.tokens))
                device.drafts_out[index] = drafter(item, anchor + 1)
            device.take(step, drafting=True)
            flying.append((step, items))
            steps.append(items)
        step += 1
        if len(flying) >= in_flight or not items:
            if not flying:
                continue
            taken, batch = flying.pop(0)
            for index, item in enumerate(batch):
                outcome = device.outcome(taken, index)
                scheduler.absorb(item, outcome.tokens, None if item.prefill else len(outcome.tokens) - 1)
    return scheduler, steps


def oracle(scenario: Scenario) -> Drafter:
    tokens = scenario.text.tokens + bytes(100)

    def draft(item: Item, position: int) -> list[int]:
        at = item.request.text_at + position
        return list(tokens[at : at + scenario.drafts])

    return draft


def junk(scenario: Scenario) -> Drafter:
    return lambda item, position: [0] * scenario.drafts


@pytest.fixture
def scenario() -> Scenario:
    text = Text("test", load(BUNDLED).tokens[:3000])
    return Scenario(
        text=text, requests=12, length=900, prompt=60, prefill_rows=64, arrival_steps=5, preempt_every=37, row_bytes=96
    )


@pytest.mark.parametrize("drafts", [oracle, junk], ids=["oracle", "junk"])
@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_output_is_the_text_whatever_the_drafts(
    scenario: Scenario, drafts: Callable[[Scenario], Drafter], in_flight: int
) -> None:
    scheduler, _ = replay(scenario, drafts(scenario), in_flight=in_flight)
    assert scheduler.counts.completed == scheduler.counts.submitted == 12
    assert scheduler.counts.identical
    for request in scheduler.finished:
        wanted = scenario.text.tokens[request.text_at + request.prompt : request.text_at + request.length]
        assert bytes(request.output) == wanted


def test_right_drafts_are_accepted_and_junk_is_not(scenario: Scenario) -> None:
    right, _ = replay(scenario, oracle(scenario))
    wrong, _ = replay(scenario, junk(scenario))
    for scheduler, low, high in ((right, 4.5, 5.0), (wrong, 0.0, 0.01)):
        steps = sum(request.verified_steps for request in scheduler.finished)
        assert low <= sum(request.accepted for request in scheduler.finished) / steps <= high


def test_every_event_happens(scenario: Scenario) -> None:
    scheduler, steps = replay(scenario, junk(scenario))
    counts = scheduler.counts
    assert counts.preempted > 0
    assert counts.cache_hits > 0
    assert counts.slot_reuses > 0
    items = [item for step in steps for item in step]
    assert any(item.prefill and not item.last_chunk for item in items), "no prompt of several chunks"
    assert any(item.prefill and item.first > 0 and item.generation > 1 for item in items)
    # A slot and generation belong to one request only, and a request that comes back has another generation or slot.
    owner: dict[tuple[int, int], int] = {}
    for item in items:
        assert owner.setdefault((item.slot, item.generation), item.request.uid) == item.request.uid
    assert len({item.request.uid for item in items}) < len(owner)


def test_batches_are_dense_and_within_bounds(scenario: Scenario) -> None:
    _, steps = replay(scenario, oracle(scenario))
    for step in steps:
        assert len(step) <= scenario.concurrency
        assert len({item.slot for item in step}) == len(step)
        at = 0
        for item in step:
            assert item.first_row == at
            at += item.rows
            assert item.rows == scenario.drafts + 1 or item.prefill


def test_rows_of_the_device_are_those_of_the_checker(scenario: Scenario) -> None:
    device = Device(scenario, ImmediateStream())
    scheduler = Scheduler(scenario)
    items = scheduler.plan(0)
    device.launch(0, items)
    item = items[0]
    at = slice(item.first_row, item.first_row + item.rows)
    checked = RowSource(scenario).rows(item.request.uid, device.positions[at], device.tokens[at])
    on_device = np.concatenate([source[at] for source in device.sources], axis=1)
    assert len(device.sources) == 3
    assert (checked.reshape(item.rows, -1) == on_device).all()
    assert len({row.tobytes() for row in on_device}) == item.rows, "rows of different positions are different"


@pytest.mark.parametrize("change", ["seed", "uid", "position", "token"])
def test_row_bytes_depend_on_everything(change: str) -> None:
    base = {"seed": 1, "uid": 2, "position": 3, "token": 4}
    other = base | {change: base[change] + 1}

    def row(values: dict[str, int]) -> bytes:
        to = ffi.new("unsigned char[]", 64)
        lib.st_fill_rows(
            values["seed"], values["uid"], 64, 1, ffi.new("int64_t[]", [values["position"]]),
            ffi.new("int32_t[]", [values["token"]]), to,
        )  # fmt: skip
        return bytes(ffi.buffer(to))

    assert row(base) == row(dict(base))
    assert sum(a == b for a, b in zip(row(base), row(other), strict=True)) < 8


def test_illegal_drafts_are_counted(scenario: Scenario) -> None:
    device = Device(scenario, ImmediateStream())
    scheduler = Scheduler(scenario)
    items = [item for item in scheduler.plan(0) if item.draft]
    device.launch(0, items)
    device.drafts_out[:] = scenario.vocab
    device.take(0, drafting=True)
    assert device.illegal_ids == scenario.drafts * len(items) > 0
    device.take(0, drafting=False)
    assert device.drafts(0, 0) == bytes(8 * scenario.drafts), "a step without a round has legal drafts"


def test_results_outlive_the_steps_in_flight() -> None:
    assert STEPS_KEPT >= 4
