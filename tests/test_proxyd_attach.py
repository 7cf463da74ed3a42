# SPDX-License-Identifier: Apache-2.0
"""ATTACH: a region that an engine hands over is adopted only where it is whole, fits and is at rest."""

from __future__ import annotations

import fcntl
import os

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from proxyd_engine import GEOMETRY, Engine, gone, hello, refused, unharmed
from proxyd_harness import Daemon

from hostflag import messages as m
from hostflag import region as regions
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("d")) as running:
        yield running


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[Engine]:
    """An engine that has only connected, beside one whose session runs."""
    with unharmed(daemon), Engine(daemon.path) as connected:
        yield connected


def region_at(base: int) -> int:
    fd = regions.create(GEOMETRY)
    regions.rebase(fd, base)
    return fd


@pytest.fixture
def attaching(engine: Engine) -> Engine:
    assert isinstance(engine.ask(hello()), m.Welcome)
    return engine


@pytest.mark.parametrize("base", [0, 77, 2**32 - 2])
def test_attach_goes_on_at_the_base(attaching: Engine, base: int) -> None:
    attaching.region_fd = region_at(base)
    attaching.geometry = GEOMETRY
    answer = attaching.ask(m.Attach(base=base), [attaching.region_fd])
    assert isinstance(answer, m.Ready), answer
    assert attaching.word(Word.RETIRED) == base


def unsealed() -> int:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, 1 << 20)
    return fd


def other_geometry() -> int:
    return regions.create(msgspec.structs.replace(GEOMETRY, drafts=4))


def no_memfd() -> int:
    return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)


def copy(*, last: int = 0, seal: bool = True, at: int | None = None) -> int:
    """Return a region's bytes in another memfd, ``last`` bytes shorter, sealed as one, with the header's byte ``at`` changed."""
    region = regions.create(GEOMETRY)
    whole = bytearray(os.pread(region, os.fstat(region).st_size, 0))
    if at is not None:
        whole[at] ^= 1
    fd = os.memfd_create("copy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.pwrite(fd, whole[: len(whole) - last], 0)
    if seal:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    os.close(region)
    return fd


def a_file_like_a_region() -> int:
    region = regions.create(GEOMETRY)
    copy = os.memfd_create("copy", os.MFD_CLOEXEC)
    os.sendfile(copy, region, 0, os.fstat(region).st_size)
    os.close(region)
    return copy


@pytest.mark.parametrize(
    ("make", "base", "words"),
    [
        (unsealed, 0, "sealed"),
        (other_geometry, 0, "geometry"),
        (no_memfd, 0, "memfd"),
        (a_file_like_a_region, 0, "sealed"),
        (lambda: region_at(5), 4, "not at rest"),
        (lambda: copy(seal=False), 0, "sealed"),
        (lambda: copy(last=4096), 0, "not as large"),
        (lambda: copy(at=0), 0, "wrong magic"),
        (lambda: copy(at=8), 0, "layout version"),
        (lambda: copy(at=16), 0, "another layout"),
        (lambda: copy(at=24), 0, "geometry"),
    ],
)
def test_a_region_that_cannot_be_adopted(attaching: Engine, make: Callable[[], int], base: int, words: str) -> None:
    fd = make()
    attaching.channel.send(m.Attach(base=base), [fd])
    os.close(fd)
    refused(attaching, "attach", words)


def test_attach_without_a_region(attaching: Engine) -> None:
    attaching.channel.send(m.Attach(base=0))
    refused(attaching, "attach", "without")


def test_attach_with_two_regions(attaching: Engine) -> None:
    fds = [region_at(0), region_at(0)]
    attaching.channel.send(m.Attach(base=0), fds)
    for fd in fds:
        os.close(fd)
    refused(attaching, "fds", "2 descriptors")


def test_a_region_that_another_session_has(daemon: Daemon) -> None:
    with unharmed(daemon) as owner, Engine(daemon.path) as thief:
        assert isinstance(thief.ask(hello()), m.Welcome)
        base = owner.word(Word.CONSUMED)
        thief.channel.send(m.Attach(base=base), [owner.region_fd])
        refused(thief, "attach", "still has this region")


def test_a_refused_attach_leaves_the_owner_alone(daemon: Daemon) -> None:
    """Also where it is the same engine: that its session is ended is CREATE's business."""
    with unharmed(daemon, "owner") as owner, Engine(daemon.path) as second:
        answer = second.attach(os.dup(owner.region_fd), owner.word(Word.CONSUMED), "owner")
        assert isinstance(answer, m.Refused)
        assert f"{owner.session:016x}" in answer.reason


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"lost": 1}, "lost word is set"),
        ({"submitted": 8}, "not at rest at 7: submitted 8"),
        ({"gathered": 6}, "not at rest at 7"),
        ({"consumed": 6}, "not at rest at 7"),
        ({"released": 8}, "released is past the base"),
    ],
)
def test_words_that_are_not_at_rest(engine: Engine, words: dict[str, int], reason: str) -> None:
    engine.geometry, engine.region_fd = GEOMETRY, region_at(7)
    engine.set_words(**words)
    answer = engine.attach(engine.region_fd, 7)
    assert isinstance(answer, m.Refused)
    assert reason in answer.reason
    gone(engine)


def test_attach_where_hello_was_due(engine: Engine) -> None:
    fd = region_at(0)
    engine.channel.send(m.Attach(base=0), [fd])
    os.close(fd)
    refused(engine, "order", "HELLO")


def test_attach_in_a_running_session(daemon: Daemon) -> None:
    with unharmed(daemon), Engine(daemon.path) as engine:
        engine.ready()
        fd = region_at(0)
        engine.channel.send(m.Attach(base=0), [fd])
        os.close(fd)
        gone(engine)


def test_after_a_refusal_the_same_region_can_be_offered_again(daemon: Daemon) -> None:
    fd = region_at(7)
    with Engine(daemon.path) as wrong:
        assert isinstance(wrong.attach(os.dup(fd), 6), m.Refused)
    with Engine(daemon.path) as right:
        assert isinstance(right.attach(fd, 7), m.Ready)
        assert right.round(8) is Verdict.DISCONNECTED


def test_regions_that_were_refused_leave_nothing(daemon: Daemon) -> None:
    with unharmed(daemon):
        before = daemon.resources()
        for _ in range(20):
            with Engine(daemon.path) as engine:
                assert isinstance(engine.attach(region_at(1), 0), m.Refused)
                gone(engine)
        daemon.back_to(before)


def test_what_a_killed_daemon_left_is_taken_up_by_the_next(short_dir: Path) -> None:
    """Its rounds were released by the engine: retired stands where it died, and goes on at the base."""
    with Daemon(short_dir) as first, Engine(first.path) as engine:
        engine.ready()
        engine.round(1)
        kept = os.dup(engine.region_fd)
        first.process.kill()
        first.join()
        gone(engine)
        engine.set_words(submitted=3, gathered=3, consumed=3, released=3)
        assert (engine.word(Word.RETIRED), engine.word(Word.PHASE)) == (1, Phase.RUNNING)
        with Daemon(short_dir) as second, Engine(second.path) as again:
            assert isinstance(again.attach(kept, 3), m.Ready)
            assert again.session != engine.session
            assert again.word(Word.RETIRED) == 3
            assert [again.round(t) for t in (4, 5)] == [Verdict.DISCONNECTED] * 2


def test_a_region_goes_on_in_the_next_session(daemon: Daemon) -> None:
    with Engine(daemon.path) as first:
        first.ready()
        verdicts = {first.round(t) for t in (1, 2, 3)}
        kept = os.dup(first.region_fd)
        first.channel.send(m.Goodbye())
        gone(first)
    with Engine(daemon.path) as second:
        welcome = second.ask(hello())
        assert isinstance(welcome, m.Welcome)
        second.session, second.geometry, second.region_fd = int(welcome.session, 16), GEOMETRY, kept
        answer = second.ask(m.Attach(base=3), [kept])
        assert isinstance(answer, m.Ready), answer
        assert second.round(4) in verdicts
