# SPDX-License-Identifier: Apache-2.0
"""Out of descriptors: a link or a probe that cannot be made leaves nothing, and all is well once there are some again."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import subprocess
import sys
import time

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import zmq

from proxyd_engine import Engine
from proxyd_harness import PATIENCE_S, Daemon
from proxyd_worker import Rounds, Worker

from hostflag.verdicts import Verdict
from proxyd.links.link import Links
from proxyd.links.linkkeeper import MAX_DELAY_S, RELINK_S


ROOT: Final = Path(__file__).resolve().parent.parent
MOST_ROOM: Final = 6  # one more than a link or a probe takes with its monitor and its connection
LINKS: Final = 20
MAX_BYTES: Final = 1 << 16
BACK_S: Final = 5.0  # libzmq closes in a thread of its own


def numbers(process: str | int = "self") -> set[int]:
    return {int(each.name) for each in Path(f"/proc/{process}/fd").iterdir()}


def held() -> int:
    return len(numbers())


@contextlib.contextmanager
def room_for(descriptors: int) -> Iterator[None]:
    """Leave the process that many descriptors to be had."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    filler = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(numbers()) + 1 + descriptors, limits[1]))
    try:
        while True:
            filler.append(os.dup(filler[0]))
    except OSError:
        for _ in range(descriptors):
            os.close(filler.pop())
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in filler:
            os.close(each)


def settled(most: int) -> int:
    """Return how many descriptors are held once there are no more than ``most``, or the time is over."""
    end = time.monotonic() + BACK_S
    while held() > most and time.monotonic() < end:
        time.sleep(0.01)
    return held()


def starve(endpoint: str) -> None:
    """Make links and probes with less and less to make them of; print what was held before and is held after. Never returns."""
    links = Links(endpoint)
    makers: tuple[Callable[[], object], ...] = (
        lambda: links.make(MAX_BYTES).close(),
        lambda: links.probe(endpoint, lambda _endpoint, _reason: None).close(),
    )
    time.sleep(0.1)  # what the check of the endpoint took
    before = held()
    for make in makers:
        failed = 0
        for room in range(MOST_ROOM):
            with room_for(room):
                try:
                    make()
                except zmq.ZMQError:
                    failed += 1
            for _ in range(LINKS):
                make()
            sys.stdout.write(f"{room} {failed} {settled(before) - before}\n")
            sys.stdout.flush()
            if held() > before:
                os._exit(1)
    os._exit(0)  # a reaper that is stuck is waited for by whoever ends the context


def test_what_cannot_be_made_leaves_nothing(short_dir: Path) -> None:
    """In a process of its own: with libzmq's reaper stuck, this one could not end."""
    program = f"import test_proxyd_descriptors as test; test.starve('ipc://{short_dir}/w')"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}, capture_output=True, text=True, timeout=PATIENCE_S * 2, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [tuple(map(int, line.split())) for line in result.stdout.splitlines()]
    assert len(rows) == 2 * MOST_ROOM
    assert {left for _, _, left in rows} == {0}
    failed = [count for room, count, _ in rows if room == MOST_ROOM - 1]
    assert all(1 <= count < MOST_ROOM for count in failed), "with some room it fails, with more it does not"


@contextlib.contextmanager
def room_in(daemon: Daemon, descriptors: int) -> Iterator[None]:
    limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    used = numbers(daemon.pid)
    free = (number for number in itertools.count() if number not in used)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (next(itertools.islice(free, descriptors, None)), limits[1]))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)


def test_a_session_that_lost_its_worker_meanwhile_gets_it_back(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        with Worker(daemon.worker):
            rounds.until(Verdict.OK)
            before = daemon.resources()
        for room in range(4):
            with room_in(daemon, room):
                time.sleep(RELINK_S + MAX_DELAY_S)  # it wants another link
            with Worker(daemon.worker):
                rounds.until(Verdict.OK)
        with Worker(daemon.worker):
            rounds.until(Verdict.OK)
            daemon.back_to(before)
        assert daemon.said("no link to the worker can be made")
