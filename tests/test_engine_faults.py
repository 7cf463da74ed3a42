# SPDX-License-Identifier: Apache-2.0
"""A stream operation that fails, at each place of a submit: the session is lost, nobody hangs, everything is freed."""

from __future__ import annotations

import contextlib
import errno

from pathlib import Path

import pytest

from engine_harness import SMALL, Ask, FakeDaemon, drained, engine, until

from engine_shim import Batch, Session, SoftStream, StreamStuck, SubmitFailed
from hostflag.messages import Geometry
from hostflag.verdicts import Loss, Skip, Verdict


# What a drafting round of one request and three sources enqueues: four headers, positions, tokens, three sources, the
# stamp, write and wait (one or two), the reply, consumed.
BATCHED = 13
TIGHT = Geometry(
    slots=8, max_requests=4, state_slots=8, row_bytes=4056, window=16, drafts=3, vocab=1000, ring_bytes=1 << 17
)


def test_the_number_of_operations_that_these_tests_go_through(short_dir: Path) -> None:
    for batched, count in ((True, BATCHED), (False, BATCHED + 1)):
        directory = short_dir / str(batched)
        directory.mkdir()
        with FakeDaemon(directory) as daemon, engine(daemon, batched=batched) as (session, stream, device):
            batch = session.batch()
            device.fill(batch, [Ask(0, 2)])
            before = stream.marker()
            session.submit(batch)
            assert stream.marker() - before == count
            daemon.hand.finish(1)


def fails(session: Session, stream: SoftStream, batch: Batch, nth: int, *, onwards: bool = False) -> None:
    stream.fail_nth(nth, errno.ENOMEM, onwards=onwards)
    with pytest.raises(SubmitFailed, match="the session is lost") as fault:
        session.submit(batch)
    assert fault.value.error == errno.ENOMEM


def watchdogs() -> list[str]:
    """Return the watchdog threads of this process."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            names.append(task.joinpath("comm").read_text().strip())
    return [name for name in names if name == "hf-watchdog"]


@pytest.mark.parametrize("nth", range(1, BATCHED + 1))
def test_a_round_that_fails_half_way(short_dir: Path, nth: int) -> None:
    """The daemon hears nothing of it; a stream that it parks all the same is released by the watchdog."""
    check_half_way(short_dir, nth, batched=True)


@pytest.mark.parametrize("nth", [10, 11, 12, 13, 14])
def test_a_round_that_fails_half_way_with_write_and_wait_apart(short_dir: Path, nth: int) -> None:
    check_half_way(short_dir, nth, batched=False)


def check_half_way(directory: Path, nth: int, *, batched: bool) -> None:
    with FakeDaemon(directory) as daemon, engine(daemon, batched=batched) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 2)])
        session.submit(batch)
        daemon.hand.finish(1)
        out = device.fill(batch, [Ask(0, 2, first=2)])
        fails(session, stream, batch, nth)
        drained(stream, "no hang: the parked round is released by its loss, not by its deadline of 10 s")
        assert session.lost is Loss.SUBMIT
        assert session.word("submitted") == 1, "the daemon never hears of it"
        assert session.word("lost") == 1
        assert session.verdict(2) is None
        assert out.tolist() == [[0, 0, 0]], "legal ids"
        assert session.submit(batch).skip is Skip.NO_SESSION
        session.settle()
        assert session.status().rounds["OK"] == 1
        until(lambda: not watchdogs(), "the stream said that it is past the half round, so the watchdog ends by itself")
        session.close()
        assert session.status().rounds["OK"] == 1


def test_rounds_before_the_failed_one_are_released_too(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()
        stream.work(50_000_000)
        for _ in range(3):
            device.fill(batch, [Ask(0, 2)])
            session.submit(batch)
        fails(session, stream, batch, BATCHED - 1)
        drained(stream)
        assert [session.verdict(t) for t in (1, 2, 3)] == [Verdict.LOST] * 3
        assert session.settle() == 3


def test_a_step_without_a_round_can_fail_too(short_dir: Path) -> None:
    """Copies to the backlog, and of the legal ids."""
    for nth in range(1, 7):
        directory = short_dir / str(nth)
        directory.mkdir()
        with FakeDaemon(directory) as daemon, engine(daemon) as (session, stream, device):
            batch = session.batch()
            device.fill(batch, [Ask(0, 1)])
            for _ in range(SMALL.slots):
                session.submit(batch)
            device.fill(batch, [Ask(1, 4, prefill=True)])
            fails(session, stream, batch, nth)
            drained(stream)
            assert session.lost is Loss.SUBMIT


def test_a_context_only_round_before_the_drafting_one_can_fail(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, TIGHT) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 16, prefill=True), Ask(1, 16, prefill=True), Ask(2, 2)])
        fails(session, stream, batch, 9)
        drained(stream)
        assert session.lost is Loss.SUBMIT
        until(lambda: session.word("gathered") == session.word("released"), "everything gathered is released")


def test_the_end_of_a_failed_submit_is_written_once_the_stream_takes_it(short_dir: Path) -> None:
    """Not at the close only: until then the lost session would keep its watchdog ticking, and its region."""
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 2)])
        fails(session, stream, batch, BATCHED - 1, onwards=True)
        session.settle()
        assert not session.ended, "nobody knows where the stream is"
        stream.fail_nth(0, 0)
        session.settle()
        until(lambda: session.ended, "the watchdog is gone")
        assert session.status().in_flight == 0


def test_a_stream_that_takes_nothing_any_more_keeps_its_region(short_dir: Path) -> None:
    """Not even the write that says where it is: nobody can know when the region may go, so it stays."""
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 2)])
        fails(session, stream, batch, BATCHED - 1, onwards=True)
        until(lambda: session.word("released") == 1, "the parked round is released")
        with pytest.raises(StreamStuck):
            session.close(timeout_s=0.2)
        assert session.status().lost is Loss.SUBMIT
        assert daemon.farewell == []
        stream.fail_nth(0, 0)  # it works again: the end of the half round can be written, and seen
        session.close()
