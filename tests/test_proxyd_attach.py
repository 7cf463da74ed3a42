# SPDX-License-Identifier: Apache-2.0
"""ATTACH: a region that an engine hands over is adopted only where it is whole, fits and is at rest."""

from __future__ import annotations

import os

from collections.abc import Callable, Iterator

import msgspec
import pytest

from proxyd_engine import GEOMETRY, Engine, gone, hello, refused, unharmed
from proxyd_harness import Daemon

from hostflag import messages as m
from hostflag import region as regions
from hostflag.region import Word


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
