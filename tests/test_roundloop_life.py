# SPDX-License-Identifier: Apache-2.0
"""A round loop's begin and end: refused starts, stop in every state, a lost session, an engine that is gone, nothing left."""

from __future__ import annotations

import os
import signal
import socket
import threading

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import leaks
import pytest

from fake_engine import Ask, FakeEngine, until
from fake_worker import FakeWorker, fake_worker
from loop_harness import MS, Running, closing, config, over, running

from hostflag.control import Close
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict
from hostflag.wire import Kind, decode_control
from proxyd._daemon import ffi, lib
from proxyd.sessions.roundloop import EventKind, LinkState, LoopError, RoundLoop


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    with fake_worker() as one:
        yield one


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    one = FakeEngine()
    yield one
    one.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda engine: engine.set_word(0, 3), "submitted"),
        (lambda engine: engine.set_word(2, 3), "consumed"),
        (lambda engine: engine.set_released(1), "released"),
        (lambda engine: engine.lose(), "lost"),
    ],
)
def test_a_region_that_is_not_at_rest_is_refused(
    engine: FakeEngine, change: Callable[[FakeEngine], None], reason: str
) -> None:
    change(engine)
    refuses(engine.fd, reason)


def test_another_base_than_the_regions_is_refused(engine: FakeEngine) -> None:
    refuses(engine.fd, "submitted", base=7)


def test_what_is_no_region_is_refused() -> None:
    fd = os.memfd_create("no region", os.MFD_CLOEXEC)
    refuses(fd, "seal")
    os.close(fd)


@pytest.mark.parametrize(
    "field", ["network_timeout_ns", "nap_ns", "open_limit_ns", "spin_ns"], ids=lambda field: str(field)
)
def test_settings_out_of_bounds_are_refused_by_name(engine: FakeEngine, field: str) -> None:
    refuses(engine.fd, field, **{field: 1 << 60 if field == "spin_ns" else 0})


def refuses(fd: int, reason: str, **changes: Any) -> None:
    """A start fails for that reason, starts nothing and leaves the socket to its owner."""
    before = leaks.held()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with pytest.raises(LoopError, match=reason):
            RoundLoop(fd, theirs.fileno(), config(**changes))
        theirs.send(b"still here")
        assert ours.recv(100) == b"still here"
    assert leaks.left_since(before) == []


def unlinked(_: Running, __: FakeWorker) -> None:
    """No link at all."""


def connecting(loop: Running, worker: FakeWorker) -> None:
    worker.close()
    loop.give()
    loop.wait_link(LinkState.CONNECTING)


def just_given(loop: Running, _: FakeWorker) -> None:
    loop.give()


def opening(loop: Running, worker: FakeWorker) -> None:
    loop.give()
    worker.expect(Kind.OPEN)


def refused(loop: Running, worker: FakeWorker) -> None:
    opening(loop, worker)
    worker.refuse()
    loop.wait_link(LinkState.REFUSED)


def resting(loop: Running, worker: FakeWorker) -> None:
    loop.up(worker)


def ungathered(loop: Running, worker: FakeWorker) -> None:
    loop.up(worker)
    loop.engine.fill(1, [Ask()])
    loop.engine.submit(1)


def ungathered_for_long(loop: Running, worker: FakeWorker) -> None:
    ungathered(loop, worker)
    beat = loop.engine.word(Word.BEAT)
    until(lambda: loop.engine.word(Word.BEAT) >= beat + 2, "the beat goes on")


def in_flight(loop: Running, worker: FakeWorker) -> None:
    loop.up(worker)
    loop.engine.begin(1)
    worker.expect_round()


def draining(loop: Running, worker: FakeWorker) -> None:
    loop.up(worker)
    loop.loop.drain()
    until(lambda: loop.engine.word(Word.PHASE) == Phase.DRAINING, "draining")


STATES = [
    unlinked, connecting, just_given, opening, refused, resting, ungathered, ungathered_for_long, in_flight, draining
]  # fmt: skip


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_stop_ends_it_soon_in_every_state(worker: FakeWorker, state: Callable[[Running, FakeWorker], None]) -> None:
    with running(worker) as loop:
        state(loop, worker)
        assert loop.stop() < 1.0, "the product's bound: it takes milliseconds"
        assert loop.events[-1].kind is EventKind.STOPPED
        assert loop.engine.word(Word.PHASE) == Phase.GONE
        assert loop.hung_up()


def end_by(loop: Running, end: str) -> None:
    """End the session from the engine's side."""
    if end == "lost":
        loop.engine.lose()
    else:
        loop.peer.close()


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("end", ["lost", "gone"])
def test_a_session_that_is_over_is_let_go_in_every_state(
    worker: FakeWorker, state: Callable[[Running, FakeWorker], None], end: str
) -> None:
    with running(worker) as loop:
        state(loop, worker)
        end_by(loop, end)
        loop.wait_for(EventKind.STOPPED)
        kinds = [event.kind for event in loop.events]
        assert (EventKind.LOST if end == "lost" else EventKind.ENGINE_GONE) in kinds
        assert (EventKind.LINK_RETURNED in kinds) == (state is not unlinked)
        assert loop.engine.word(Word.PHASE) != Phase.GONE, "nothing is written once the session is lost"
        assert loop.engine.word(Word.RETIRED) == 0
        assert end == "gone" or loop.hung_up()


@pytest.mark.parametrize("state", [opening, resting, in_flight, draining], ids=lambda state: state.__name__)
@pytest.mark.parametrize("end", ["lost", "gone"])
def test_the_worker_hears_that_the_session_is_over(
    worker: FakeWorker, state: Callable[[Running, FakeWorker], None], end: str
) -> None:
    """Also where nobody had the time to say so: else it would keep the contexts of an engine that died."""
    with running(worker) as loop:
        state(loop, worker)
        end_by(loop, end)
        header, parts = worker.receive()
        while header.kind in {Kind.PING, Kind.ROUND}:
            header, parts = worker.receive()
        assert header.kind is Kind.CLOSE
        message = decode_control(header, parts[0])
        assert isinstance(message, Close)
        assert message.reason
        loop.wait_for(EventKind.STOPPED)


def test_stop_releases_what_is_gathered_and_leaves_the_rest_to_the_watchdog(worker: FakeWorker) -> None:
    with running(worker) as loop:
        in_flight(loop, worker)
        for t in (2, 3):
            loop.engine.fill(t, [Ask()], ring_offset=t * 4096)
        loop.engine.gather(2)
        loop.engine.submit(3)
        loop.stop()
        assert [loop.engine.verdict(t) for t in (1, 2, 3)] == [Verdict.DRAINING, Verdict.DRAINING, Verdict.OPEN]
        assert (loop.engine.word(Word.RELEASED), loop.engine.word(Word.RETIRED)) == (2, 2)


def test_stop_twice_and_after_the_end_is_harmless(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.loop.stop(closing())
        loop.loop.stop(closing())
        loop.wait_for(EventKind.STOPPED)
        loop.loop.stop(closing())
        assert lib.hfd_loop_free(loop.loop._loop) < 0, "not before join"


def test_the_map_is_gone_before_the_socket(worker: FakeWorker) -> None:
    """A peer that sees the socket closed may hand the region to another: nobody may have it mapped any more."""
    with running(worker) as loop:
        resting(loop, worker)
        own = len(region_maps())
        loop.engine.lose()
        until(loop.hung_up, "the socket is closed")
        assert len(region_maps()) < own


def region_maps() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "dsv41-region" in line]


def test_the_loop_maps_what_others_write_read_only(engine: FakeEngine) -> None:
    before = region_maps()
    with over(engine, None, config()):
        maps = [line for line in region_maps() if line not in before]
    assert {rights(maps, getattr(engine.layout, part)) for part in ("engine_words", "slots", "rows")} == {"r--s"}
    assert {rights(maps, getattr(engine.layout, part)) for part in ("shared_words", "daemon_words", "replies")} == {
        "rw-s"
    }


def rights(maps: list[str], offset: int) -> str:
    """Return the rights of the map that holds an offset of the region."""
    for line in maps:
        where, rights, start, *_ = line.split()
        first, last = (int(address, 16) for address in where.split("-"))
        if int(start, 16) <= offset < int(start, 16) + last - first:
            return rights
    raise AssertionError(f"offset {offset} is not in {maps}")


def test_the_loops_thread_takes_no_signals(worker: FakeWorker) -> None:
    with running(worker) as loop:
        loop.wait_link(LinkState.NONE)
        tasks = {task.joinpath("comm").read_text().strip(): task for task in Path("/proc/self/task").iterdir()}
        blocked = status_mask(tasks["hfd-round"])
        assert all(blocked >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))
        assert not status_mask(Path(f"/proc/self/task/{threading.get_native_id()}")) >> (signal.SIGTERM - 1) & 1


def status_mask(task: Path) -> int:
    line = next(line for line in task.joinpath("status").read_text().splitlines() if line.startswith("SigBlk"))
    return int(line.split()[1], 16)


def test_a_loop_says_whether_its_map_is_locked(worker: FakeWorker) -> None:
    with running(worker) as loop:
        status = ffi.new("struct hfd_status *")
        lib.hfd_loop_status(loop.loop._loop, status)
        assert status.lock_error <= 0
        assert status.phase == Phase.RUNNING
        assert status.done == 0


def test_loops_come_and_go_and_leave_nothing(worker: FakeWorker) -> None:
    before = leaks.held()
    for _ in range(10):
        for state in (unlinked, just_given, opening, resting, in_flight, ungathered):
            with fake_worker() as one, running(one, network_timeout_ns=100 * MS) as loop:
                state(loop, one)
    assert leaks.left_since(before) == []
