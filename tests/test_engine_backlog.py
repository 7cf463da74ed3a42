# SPDX-License-Identifier: Apache-2.0
"""Prompts larger than the ring: split over context-only rounds, the rest kept in device memory and shipped later."""

from __future__ import annotations

import threading

from collections import defaultdict
from pathlib import Path

import pytest

from engine_harness import LARGE, SMALL, Ask, Device, FakeDaemon, Hand, Shipment, drained, engine, until

from engine_shim import Session, SoftStream
from hostflag.messages import Geometry
from hostflag.region import Word
from hostflag.verdicts import Skip


# A ring of 32 rows: four requests with a window of 16 each do not fit.
TIGHT = Geometry(
    slots=8, max_requests=4, state_slots=8, row_bytes=4056, window=16, drafts=3, vocab=1000, ring_bytes=1 << 17
)


class Contexts:
    """A worker's view: rows by key, checked bit for bit as they come, in order."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.positions: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.faults: list[str] = []
        self.drafted: set[int] = set()
        self.lock = threading.Lock()

    def take(self, hand: Hand, t: int) -> list[int]:
        """One round, in the daemon's thread."""
        shipped = hand.shipped(t)
        with self.lock:
            for one in shipped:
                self._take(one)
                if one.flags & 1 and not hand.context_only(t):
                    self.drafted.add(one.slot)
        return [1] * (len(shipped) * hand.geometry.drafts)

    def _take(self, one: Shipment) -> None:
        try:
            self.device.check(one)
        except AssertionError as error:
            self.faults.append(f"{one.slot}: {error}")
        self.positions[one.slot, one.generation] += one.positions


def run_prefill(
    session: Session, stream: SoftStream, device: Device, contexts: Contexts, *, requests: int, rows: int
) -> int:
    """Prefill so many requests at once, then decode until each has drafted. Returns the steps after the first."""
    batch = session.batch()
    device.fill(batch, [Ask(slot, rows, prefill=True) for slot in range(requests)])
    ticket = session.submit(batch)
    assert ticket.rows + ticket.rows_deferred == requests * rows
    steps = 0
    while len(contexts.drafted) < requests:
        steps += 1
        assert steps < 60, f"still target-only: {set(range(requests)) - contexts.drafted}"
        settled(session, stream)
        device.kept.clear()
        device.fill(batch, [Ask(slot, 2, first=rows + 2 * steps) for slot in range(requests)])
        session.submit(batch)
        settled(session, stream)
    return steps


def settled(session: Session, stream: SoftStream) -> None:
    drained(stream)
    until(lambda: session.word("retired") == session.word("submitted"), "the daemon is done with it")


def flush_all(session: Session, stream: SoftStream) -> None:
    """Flush until nothing waits any more and all of it has arrived."""
    for _ in range(20):
        settled(session, stream)
        if session.flush().rows_deferred == 0:
            break
    settled(session, stream)


@pytest.mark.parametrize("requests", [5, 16])
def test_prompts_larger_than_the_ring_get_their_context_over(short_dir: Path, requests: int) -> None:
    """Five and sixteen times 128 rows of 30,720 bytes, through a ring of 16 MiB."""
    with FakeDaemon(short_dir) as daemon, engine(daemon, LARGE) as (session, stream, device):
        contexts = Contexts(device)
        daemon.finish_all(contexts.take)
        steps = run_prefill(session, stream, device, contexts, requests=requests, rows=128)
        assert contexts.faults == []
        for slot in range(requests):
            positions = contexts.positions[slot, 1]
            assert positions[:128] == list(range(128)), f"request {slot}"
            assert positions == sorted(set(positions))
        assert steps <= 8
        status = session.status()
        assert status.rows_deferred > 0
        assert status.skipped["SLOTS"] == 0


def test_rows_that_wait_are_shipped_by_flush_and_their_request_drafts_only_then(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, TIGHT) as (session, stream, device):
        contexts = Contexts(device)
        batch = session.batch()
        device.fill(batch, [Ask(slot, 16, prefill=True) for slot in range(4)])
        first = session.submit(batch)
        assert first.rows_deferred > 0
        assert first.rows + first.rows_deferred == 64
        for t in first.rounds:
            daemon.hand.see(t)
            for one in daemon.hand.shipped(t):
                device.check(one)
                contexts.positions[one.slot, one.generation] += one.positions
            daemon.hand.finish(t)
        out = device.fill(batch, [Ask(slot, 1, first=16) for slot in range(4)])
        second = session.submit(batch)
        table = session.table(second.rounds[-1])
        waiting = [one.slot for one in table.requests if not one.draft]
        assert 0 < len(waiting) < 4
        assert all(one.rows == 0 for one in table.requests if not one.draft)
        assert session.status().rows_left_out == len(waiting), "a decode behind its own prompt is a gap"
        daemon.finish_all(contexts.take, first.rounds[-1])
        flush_all(session, stream)
        assert contexts.faults == []
        for slot in range(4):
            assert contexts.positions[slot, 1][:16] == list(range(16))
        out = device.fill(batch, [Ask(slot, 1, first=17) for slot in range(4)])
        third = session.submit(batch)
        assert all(one.draft for one in session.table(third.rounds[-1]).requests)
        drained(stream)
        assert out.tolist() == [[1, 1, 1]] * 4
        assert session.flush().skip is Skip.NOTHING


def test_a_prompt_that_wanted_drafts_but_waits_makes_a_target_only_step(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, TIGHT) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 16, prefill=True, draft=False), Ask(1, 16, prefill=True, draft=False)], drafts=False)
        session.submit(batch)
        out = device.fill(batch, [Ask(2, 16, prefill=True)])
        ticket = session.submit(batch)
        assert (ticket.round, ticket.skip) == (None, Skip.RING)
        assert ticket.rows_deferred >= 16
        drained(stream)
        assert out.tolist() == [[0, 0, 0]]


def test_what_waits_for_an_older_generation_is_dropped(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, TIGHT) as (session, stream, device):
        contexts = Contexts(device)
        batch = session.batch()
        device.fill(batch, [Ask(slot, 16, prefill=True) for slot in range(4)])
        waited = session.submit(batch).rows_deferred
        device.fill(batch, [Ask(3, 4, generation=2, prefill=True)])
        ticket = session.submit(batch)
        dropped = session.status().rows_left_out
        assert 0 < dropped <= 16
        assert ticket.rows_deferred == waited - dropped + 4 - ticket.rows
        daemon.finish_all(contexts.take)
        flush_all(session, stream)
        assert contexts.faults == []
        assert contexts.positions[3, 2] == [0, 1, 2, 3]
        assert len(contexts.positions[3, 1]) == 16 - dropped


def test_a_place_that_a_submit_frees_it_can_fill_again(short_dir: Path) -> None:
    """The backlog is full: what the next submit ships makes room for what that same submit has to keep."""
    with FakeDaemon(short_dir) as daemon, engine(daemon, TIGHT, backlog_rows=16) as (session, stream, device):
        contexts = Contexts(device)
        batch = session.batch()
        device.fill(batch, [Ask(slot, 16, prefill=True) for slot in range(2)])
        first = session.submit(batch)
        assert first.rows_deferred == 16, "full"
        for t in first.rounds:
            daemon.hand.see(t)
            contexts.take(daemon.hand, t)
            daemon.hand.finish(t)
        device.fill(batch, [Ask(slot, 16, prefill=True) for slot in (2, 3)])
        second = session.submit(batch)
        assert second.rows > 0, "some of what waited is on its way"
        assert second.rows_deferred == 16, "and its place is taken again"
        daemon.finish_all(contexts.take, first.rounds[-1])
        flush_all(session, stream)
        assert contexts.faults == []
        assert contexts.positions[0, 1] == contexts.positions[1, 1] == list(range(16))
        kept = len(contexts.positions[2, 1]) + len(contexts.positions[3, 1])
        assert kept == second.rows + second.rows_deferred - 16
        assert kept + session.status().rows_left_out == 32


def test_without_a_backlog_the_rest_is_left_out_and_counted(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, TIGHT, backlog_rows=0) as (session, _, device):
        batch = session.batch()
        device.fill(batch, [Ask(slot, 16, prefill=True) for slot in range(4)])
        ticket = session.submit(batch)
        assert ticket.rows_deferred == 0
        assert session.status().rows_left_out == 64 - ticket.rows > 0
        assert ticket.round is not None, "a gap keeps nobody from drafting"
        daemon.finish_all(lambda hand, t: [1] * 12)


def test_only_the_newest_window_of_a_prompt_is_shipped(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, SMALL) as (session, _, device):
        batch = session.batch()
        asks = [
            Ask(0, 40, first=0, prefill=True),
            Ask(1, 10, first=0, prefill=True, draft=False, to_come=10),
            Ask(2, 10, first=0, prefill=True, draft=False, to_come=16),
        ]
        device.fill(batch, asks)
        ticket = session.submit(batch)
        assert ticket.round is not None
        daemon.hand.see(ticket.round)
        shipped = daemon.hand.shipped(ticket.round)
        assert [one.positions for one in shipped] == [list(range(24, 40)), list(range(4, 10)), []]
        for one in shipped:
            device.check(one)
        assert session.status().rows_left_out == 0, "rows that do not matter are not missing"
        daemon.hand.finish(ticket.round)
        assert daemon.hand.word(Word.RETIRED) == ticket.round


def test_skipped_steps_keep_their_prompts(short_dir: Path) -> None:
    """With every slot taken, decode rows are lost to the drafter, prompt rows are not."""
    with FakeDaemon(short_dir) as daemon, engine(daemon, SMALL) as (session, stream, device):
        contexts = Contexts(device)
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        for _ in range(SMALL.slots):
            session.submit(batch)
        out = device.fill(batch, [Ask(1, 6, prefill=True), Ask(2, 2)])
        ticket = session.submit(batch)
        assert (ticket.round, ticket.skip, ticket.rows, ticket.rows_deferred) == (None, Skip.SLOTS, 0, 6)
        assert session.status().rows_left_out == 2
        daemon.finish_all(contexts.take)
        drained(stream)
        assert out.tolist() == [[0, 0, 0]] * 2
        until(lambda: session.word("retired") == session.word("submitted"), "the daemon is done with it")
        assert session.flush().rows_deferred == 0
        until(lambda: contexts.positions[1, 1] == list(range(6)), "the prompt is over")
        assert contexts.faults == []
