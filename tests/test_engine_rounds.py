# SPDX-License-Identifier: Apache-2.0
"""A round from submit to consumed: what lies in the region, what reaches the device, when a slot is free again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine_harness import SMALL, Ask, Device, FakeDaemon, Hand, drained, engine, past, until

from engine_shim import SessionClosed, SubmitFailed
from hostflag.region import Word
from hostflag.verdicts import Loss, Phase, Skip, Verdict


IDS = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
THREE = [Ask(5, 4, first=7, rejected=1), Ask(0, 1, first=3, gap=2), Ask(2, 3, first=9, gap=1)]


def flat(ids: list[list[int]]) -> list[int]:
    return [one for row in ids for one in row]


def test_a_round_reaches_the_region_bit_for_bit_and_its_reply_the_device(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()
        out = device.fill(batch, THREE)
        ticket = session.submit(batch)
        assert tuple(ticket) == (1, Skip.NONE, 0, 1, 8, 0, session.id)
        assert ticket.rounds == [1]
        daemon.hand.see(1)
        shipped = daemon.hand.shipped(1)
        assert [(one.slot, one.batch_index, one.positions) for one in shipped] == [
            (5, 0, [7, 8, 9, 10]),
            (0, 1, [3]),
            (2, 2, [9, 10, 11]),
        ]
        for one in shipped:
            device.check(one)
        assert daemon.hand.array(1, "num_sampled", np.int32, 3) == [3, 1, 3]
        assert daemon.hand.array(1, "num_rejected", np.int32, 3) == [1, 0, 0]
        assert daemon.hand.array(1, "last_sampled", np.int64, 8) == list(range(100, 108))
        assert daemon.hand.array(1, "next_prefill", np.int32, 8) == list(range(200, 208))
        assert session.verdict(1) is Verdict.OPEN
        assert not session.consumed(1)
        daemon.hand.finish(1, Verdict.OK, flat(IDS))
        drained(stream)
        assert out.tolist() == IDS
        assert session.consumed(1)
        assert session.verdict(1) is Verdict.OK
        assert session.drafts(1) == IDS


@pytest.mark.parametrize("batched", [True, False])
def test_the_stream_does_not_go_on_before_it_is_released(short_dir: Path, batched: bool) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, batched=batched) as (session, stream, device):
        batch = session.batch()
        out = device.fill(batch, THREE)
        session.submit(batch)
        daemon.hand.see(1)
        until(lambda: session.word("parked"), "the stream is parked")
        daemon.hand.reply(1, flat(IDS))
        assert not stream.wait(stream.marker(), 0.05)
        assert (out == -1).all()
        assert daemon.hand.decide(1, Verdict.OK)
        daemon.hand.release(1)
        drained(stream)
        assert out.tolist() == IDS
        assert session.word("parked") == 0
        daemon.hand.retire(1)


def test_what_a_settled_round_leaves_in_the_recorder(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, THREE)
        session.submit(batch)
        with pytest.raises(LookupError):
            session.record(1)
        daemon.hand.finish(1, Verdict.OK, flat(IDS))
        drained(stream)
        assert session.settle() == 1
        assert session.settle() == 0
        record = session.record(1)
        assert (record.verdict, record.n_requests, record.n_rows) == (Verdict.OK, 3, 8)
        assert 0 < record.submitted_ns <= record.gathered_ns <= record.timing.decided_ns
        status = session.status()
        assert (status.rounds["OK"], status.rows_shipped, status.in_flight) == (1, 8, 0)


def test_a_slot_is_free_only_once_its_round_is_consumed_and_retired(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        for t in range(1, SMALL.slots + 1):
            assert session.submit(batch).round == t
        refused = session.submit(batch)
        assert (refused.round, refused.skip) == (None, Skip.SLOTS)
        # Released and consumed, but not retired: the daemon may still read the slot.
        daemon.hand.see(1)
        daemon.hand.decide(1, Verdict.OK)
        daemon.hand.release(1)
        until(lambda: session.consumed(1), "round 1 is consumed")
        assert session.submit(batch).skip is Skip.SLOTS
        daemon.hand.retire(1)
        assert session.submit(batch).round == SMALL.slots + 1
        # Retired, but not consumed: the stream has yet to copy the reply of round 2.
        daemon.hand.retire(2)
        assert session.submit(batch).skip is Skip.SLOTS
        for t in range(2, SMALL.slots + 2):
            daemon.hand.finish(t)
        drained(stream)
        assert session.verdict(1) is None
        with pytest.raises(LookupError):
            session.drafts(1)
        assert session.record(1).verdict is Verdict.OK
        assert session.status().skipped["SLOTS"] == 3


@pytest.mark.parametrize("base", [0, 2**32 - 20, 2**31 - 20])
def test_the_counter_wraps_like_any_other_step(short_dir: Path, base: int) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, base=base) as (session, stream, device):
        seen: list[int] = []

        def look(hand: Hand, t: int) -> list[int]:
            for one in hand.shipped(t):
                device.check(one)
            seen.append(t)
            return [t % SMALL.vocab, 1, 2]

        daemon.finish_all(look, base)
        batch = session.batch()
        rounds: list[int] = []
        for step in range(40):
            out = device.fill(batch, [Ask(step % 8, 3, first=step, gap=step % 2)])
            ticket = session.submit(batch)
            assert ticket.round == (base + 1 + step) % 2**32
            drained(stream)
            assert out[0].tolist() == [ticket.round % SMALL.vocab, 1, 2]
            rounds.append(ticket.round)
            until(lambda: past(daemon.hand.word(Word.RETIRED), rounds[-1]) >= 0, "retired")
        assert seen == rounds
        session.settle()
        assert session.status().rounds["OK"] == 40
        assert [session.record(t).round for t in rounds] == rounds


def test_a_step_that_takes_no_drafts_does_not_wait(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, THREE, drafts=False)
        ticket = session.submit(batch)
        assert (ticket.round, ticket.skip, ticket.rounds, ticket.rows) == (None, Skip.NONE, [1], 8)
        drained(stream)
        assert session.word("released") == 0
        assert daemon.hand.context_only(1)
        assert daemon.hand.array(1, "num_rejected", np.int32, 3) == [1, 0, 0]
        for one in daemon.hand.shipped(1):
            device.check(one)
            assert one.flags == 0
        assert session.settle() == 0, "consumed, but not decided"
        daemon.hand.finish(1)
        assert session.settle() == 1
        assert session.status().context_only == 1
        with pytest.raises(LookupError):
            session.drafts(1)


def test_a_target_only_step_leaves_legal_ids(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()
        for phase, skip in ((Phase.DRAINING, Skip.DRAINING), (Phase.GONE, Skip.NO_SESSION)):
            daemon.hand.phase(phase)
            out = device.fill(batch, THREE)
            assert session.submit(batch).skip is skip
            drained(stream)
            assert out.tolist() == [[0, 0, 0]] * 3
        daemon.hand.phase(Phase.RUNNING)
        out = device.fill(batch, [Ask(1, 20, draft=False, prefill=True, to_come=16)])
        assert session.submit(batch).skip is Skip.NOTHING
        drained(stream)
        assert out.tolist() == [[0, 0, 0]]
        session.give_up()
        out = device.fill(batch, THREE)
        assert session.submit(batch).skip is Skip.NO_SESSION
        drained(stream)
        assert out.tolist() == [[0, 0, 0]] * 3
        status = session.status()
        assert (status.rows_left_out, status.submitted, status.lost) == (24, 0, Loss.CLOSED)


def test_a_batch_that_is_none_is_refused_and_nothing_happens(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, _, device):
        batch = session.batch(max_requests=8)
        cases = {
            "more requests than the geometry": [Ask(slot, 1) for slot in range(5)],
            "a request slot that is none": [Ask(8, 1)],
        }
        for why, asks in cases.items():
            device.fill(batch, asks)
            with pytest.raises(SubmitFailed, match="Invalid argument"):
                session.submit(batch)
            assert session.word("submitted") == 0, why
        device.fill(batch, [Ask(0, 1)])
        batch.set_sources([(device.kept[-1][0].ctypes.data, 96, 88)])
        with pytest.raises(SubmitFailed):
            session.submit(batch)
        assert session.lost is Loss.NONE
        with pytest.raises(ValueError, match="room for 8"):
            batch.n_requests = 9
        with pytest.raises(ValueError, match="at most 8"):
            batch.set_sources([(0, 0, 0)] * 9)


def test_rows_side_by_side_in_the_batch_go_in_one_copy_a_source(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()

        def operations(asks: list[Ask]) -> int:
            device.fill(batch, asks)
            before = stream.marker()
            ticket = session.submit(batch)
            assert ticket.round is not None
            after = stream.marker()
            daemon.hand.finish(ticket.round)
            drained(stream)
            return after - before

        one = operations([Ask(0, 2)])
        assert operations([Ask(0, 2), Ask(1, 3), Ask(2, 1)]) == one
        assert operations([Ask(0, 2), Ask(1, 3, gap=1), Ask(2, 1)]) == one + 5, "positions, tokens, three sources"


def test_a_closed_session_says_so(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        daemon.hand.finish(1)
        drained(stream)
        session.close()
        session.close()
        assert daemon.farewell == ["Goodbye"]
        assert session.status().rounds["OK"] == 1
        assert session.lost is Loss.NONE
        with pytest.raises(SessionClosed):
            session.submit(batch)


def test_the_device_of_these_tests_makes_different_rows() -> None:
    device = Device(SMALL)
    rows = [device.row(*key) for key in ((0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 1, 0))]
    assert len({row.tobytes() for row in rows}) == 4
