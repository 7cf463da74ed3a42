# SPDX-License-Identifier: Apache-2.0
"""The watchdog: deadlines, decided rounds nobody released, and how it behaves when it cannot run itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from pathlib import Path

import pytest

from engine_harness import PATIENCE_S, SMALL, Ask, FakeDaemon, drained, engine, until

from engine_shim import StreamStuck
from hostflag.verdicts import Loss, Skip, Verdict


DEADLINE_MS = 150.0


def test_a_round_that_nobody_decides_is_released_at_its_deadline(short_dir: Path) -> None:
    with (
        FakeDaemon(short_dir) as daemon,
        engine(daemon, deadline_ms=DEADLINE_MS, expiries_limit=0, beat_limit_ms=0) as (session, stream, device),
    ):
        batch = session.batch()
        out = device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        daemon.hand.see(1)
        began = time.monotonic()
        drained(stream)
        waited = time.monotonic() - began
        assert waited > DEADLINE_MS / 1e3 / 2
        assert session.verdict(1) is Verdict.EXPIRED
        assert (out >= 0).all(), "legal ids, whatever they are"
        assert not daemon.hand.decide(1, Verdict.OK), "the round is decided, and stays so"
        assert session.verdict(1) is Verdict.EXPIRED
        session.settle()
        assert session.status().rounds["EXPIRED"] == session.status().expired == 1
        assert session.lost is Loss.NONE


def test_deadlines_of_several_rounds_do_not_add_up(short_dir: Path) -> None:
    """Context-only rounds are gathered at once: with one clock for the oldest, the fifth would wait five deadlines."""
    with (
        FakeDaemon(short_dir) as daemon,
        engine(daemon, deadline_ms=400, expiries_limit=0, beat_limit_ms=0) as (session, stream, device),
    ):
        batch = session.batch()
        for number in range(4):
            device.fill(batch, [Ask(0, 1, first=number)], drafts=False)
            assert session.submit(batch).rounds == [number + 1]
        device.fill(batch, [Ask(0, 1, first=4)])
        assert session.submit(batch).round == 5
        daemon.hand.see(5)
        assert stream.wait(stream.marker(), 2 * 0.4 + 0.3), "five deadlines would be 2 s"
        assert [session.verdict(t) for t in range(1, 6)] == [Verdict.EXPIRED] * 5
        assert session.word("released") == 5


def test_a_round_is_not_released_before_it_is_gathered(short_dir: Path) -> None:
    with (
        FakeDaemon(short_dir) as daemon,
        engine(daemon, deadline_ms=20, expiries_limit=0, beat_limit_ms=0) as (session, stream, device),
    ):
        batch = session.batch()
        stream.work(300_000_000)
        busy = stream.marker()
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        session.give_up()
        assert not stream.reached(busy)
        assert (session.word("gathered"), session.word("released")) == (0, 0)
        assert session.verdict(1) is Verdict.OPEN
        drained(stream)
        assert session.verdict(1) is Verdict.LOST


def test_a_round_that_was_decided_but_not_released_is_released(short_dir: Path) -> None:
    """As after a daemon that died between the two."""
    with FakeDaemon(short_dir) as daemon, engine(daemon, beat_limit_ms=0) as (session, stream, device):
        batch = session.batch()
        out = device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        daemon.hand.see(1)
        daemon.hand.reply(1, [7, 8, 9])
        assert daemon.hand.decide(1, Verdict.OK)
        drained(stream)
        assert out.tolist() == [[7, 8, 9]]
        assert session.verdict(1) is Verdict.OK


def test_at_rest_it_does_not_tick(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, tick_ms=1, beat_limit_ms=0) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        daemon.hand.finish(1)
        drained(stream)

        def resting() -> bool:
            before = session.status().ticks
            time.sleep(0.2)
            return session.status().ticks == before

        until(resting, "no tick within 200 ms at a tick of 1 ms")
        session.submit(batch)
        daemon.hand.see(2)
        before = session.status().ticks
        until(lambda: session.status().ticks > before + 3, "it ticks while a round is in flight")
        daemon.hand.finish(2)


def test_a_starved_watchdog_refuses_rounds(short_dir: Path) -> None:
    """Here it is starved by its own settings: its tick is longer than what counts as starved."""
    with (
        FakeDaemon(short_dir) as daemon,
        engine(daemon, tick_ms=1_000, starved_ms=10, beat_limit_ms=0) as (session, stream, device),
    ):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        assert session.submit(batch).round == 1, "at rest it is woken, and counts as running from then on"
        daemon.hand.see(1)
        time.sleep(0.05)
        out = device.fill(batch, [Ask(0, 2), Ask(1, 3, prefill=True)])
        ticket = session.submit(batch)
        assert (ticket.round, ticket.skip, ticket.rows_deferred) == (None, Skip.WATCHDOG, 3)
        assert session.status().skipped["WATCHDOG"] == 1
        daemon.hand.finish(1)
        drained(stream)
        assert out.tolist() == [[0, 0, 0]] * 2


# A process that its test stops and lets go on while a round is parked.
FROZEN = """
import sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}, {root!r}]
from engine_harness import Ask, FakeDaemon, drained, engine, until
with FakeDaemon(Path({directory!r})) as daemon:
    with engine(daemon, deadline_ms={deadline_ms}, expiries_limit=1, beat_limit_ms={beat_limit_ms}) as (session, stream, device):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        daemon.hand.see(1)
        daemon.hand.beat()
        ticks = session.status().ticks
        until(lambda: session.status().ticks > ticks + 2, "the watchdog has seen both")
        print("parked", flush=True)
        sys.stdin.readline()
        until(lambda: session.status().watchdog_late_ns > 500_000_000, "the watchdog runs again, and was late")
        time.sleep(0.05)
        print(session.verdict(1).name, session.lost.name, flush=True)
        daemon.hand.finish(1)
        drained(stream)
"""


@pytest.mark.parametrize(
    ("deadline_ms", "beat_limit_ms", "verdict"),
    [(500, 0, "EXPIRED"), (60_000, 1_000, "OPEN")],
    ids=["deadline", "beat"],
)
def test_a_pause_of_its_own_is_not_held_against_the_daemon(
    short_dir: Path, root: Path, deadline_ms: int, beat_limit_ms: int, verdict: str
) -> None:
    """A frozen container: engine, watchdog and daemon stop together. An old round is let go, the session stays."""
    code = FROZEN.format(
        tests=str(root / "tests"), root=str(root), directory=str(short_dir),
        deadline_ms=deadline_ms, beat_limit_ms=beat_limit_ms,
    )  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stdout.readline() == "parked\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGCONT)
        out, _ = process.communicate("\n", PATIENCE_S)
        assert out.split() == [verdict, "NONE"]
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_close_waits_for_a_parked_round_until_its_deadline(short_dir: Path) -> None:
    with (
        FakeDaemon(short_dir) as daemon,
        engine(daemon, deadline_ms=DEADLINE_MS, beat_limit_ms=0) as (session, _, device),
    ):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        daemon.hand.see(1)
        session.close()
        status = session.status()
        assert (status.rounds["EXPIRED"], status.lost, status.in_flight) == (1, Loss.NONE, 0)


def test_close_gives_a_round_up_that_would_park_for_longer(short_dir: Path) -> None:
    with (
        FakeDaemon(short_dir) as daemon,
        engine(daemon, deadline_ms=60_000, beat_limit_ms=0) as (session, stream, device),
    ):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        daemon.hand.see(1)
        session.close(timeout_s=0.5)
        assert stream.wait(stream.marker(), PATIENCE_S)
        status = session.status()
        assert (status.rounds["LOST"], status.lost) == (1, Loss.CLOSED)


def test_close_keeps_everything_where_the_stream_is_stuck(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon, beat_limit_ms=0) as (session, stream, device):
        batch = session.batch()
        stream.work(700_000_000)
        device.fill(batch, [Ask(0, 1)])
        session.submit(batch)
        with pytest.raises(StreamStuck, match="stays mapped"):
            session.close(timeout_s=0.1)
        assert session.status().consumed == 0, "still mapped"
        assert daemon.farewell == []
        session.close(timeout_s=PATIENCE_S)
        assert session.status().consumed == 1
        assert session.status().rounds["LOST"] == 1


def test_a_slot_that_is_not_retired_stays_taken_after_its_round_expired(short_dir: Path) -> None:
    with (
        FakeDaemon(short_dir) as daemon,
        engine(daemon, deadline_ms=20, expiries_limit=0, beat_limit_ms=0) as (session, stream, device),
    ):
        batch = session.batch()
        device.fill(batch, [Ask(0, 1)])
        for t in range(1, SMALL.slots + 1):
            assert session.submit(batch).round == t
            drained(stream)
            assert session.verdict(t) is Verdict.EXPIRED
        assert session.submit(batch).skip is Skip.SLOTS
        daemon.hand.retire(1)
        assert session.submit(batch).round == SMALL.slots + 1
