# SPDX-License-Identifier: Apache-2.0
"""After a loss: the next session, on the lost region where its owner is provably gone, and on a new one otherwise."""

from __future__ import annotations

import errno
import socket

from pathlib import Path
from typing import Any

import pytest

from engine_hand import PATIENCE_S, until
from engine_harness import SMALL, drained
from shim_daemon import Daemons, Host, serving
from shim_harness import Driver, shim_with

from engine_shim import SessionOptions, SubmitFailed
from hostflag import messages as m
from hostflag.region import Word
from hostflag.verdicts import Skip, Verdict


BEAT_LIMIT_MS = 150.0


def lose_by_silence(driver: Driver, host: Host) -> None:
    """Stop the daemon, and step until the shim has given it up."""
    host.stop()
    driver.lost()


def quick(**options: Any) -> dict[str, Any]:
    return {"session": SessionOptions(beat_limit_ms=BEAT_LIMIT_MS), **options}


def test_a_dead_daemons_region_is_adopted_as_it_is(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        old = daemons.host(0)
        old.answering.clear()
        parked, out = driver.submit()
        assert parked.round is not None
        assert parked.ref
        old.on_words.see(parked.round)
        old.die()
        drained(driver.stream)
        assert (out >= 0).all()
        driver.session(other_than=first.session)
        assert driver.shim.verdict(parked.ref) is Verdict.LOST, "asked of the session it was made in"
        following = driver.ok()
        new = daemons.host(1)
        assert new.region_id == old.region_id
        assert new.base == parked.round, "the counter goes on, from a round of which everything is over"
        assert new.lost_word == 0, "cleared before the region was handed over"
        assert following.round
        assert following.round > parked.round
        assert following.session != parked.session
        driver.shim.settle()
        status = driver.shim.status()
        assert status.registrations == 1, "nothing was registered for it"
        assert (status.sessions, status.losses, len(status.recovery_ms.ms)) == (2, {"HANGUP": 1}, 1)
        assert status.rounds["LOST"] == 1
        assert sum(status.rounds.values()) == following.round, "every round is in the books once"


def test_many_deaths_and_one_region(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", backoff_ms=(1.0, 5.0)) as driver:
        for number in range(20):
            last = driver.ok()
            daemons.host(number).die()
            driver.session(other_than=last.session)
        status = driver.shim.status()
        assert (status.registrations, status.losses) == (1, {"HANGUP": 20})
        assert len({host.region_id for host in daemons.hosts}) == 1
        bases = [host.base for host in daemons.hosts[1:]]
        assert bases == sorted(bases)  # type: ignore[type-var]


def test_a_stopped_daemons_region_stays_fenced_until_it_is_gone(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", **quick()) as driver:
        first = driver.ok()
        old = daemons.host(0)
        lose_by_silence(driver, old)
        driver.session(other_than=first.session)
        driver.ok()
        assert daemons.host(1).base is None, "a new region"
        assert daemons.host(1).region_id != old.region_id
        assert old.on_words.word(Word.LOST) == 1, "a daemon that goes on sees that it must let go"
        regions = driver.shim.status().regions
        assert (regions.in_use, regions.fenced, regions.free) == (1, 1, 0)
        assert set(driver.shim.status().losses) <= {"BEAT", "EXPIRIES"}
        old.die()
        until(lambda: driver.shim.status().regions.free == 1, "the region comes back once its owner's socket is closed")
        assert driver.shim.status().registrations == 2


def test_a_daemon_that_shuts_down_its_side_is_not_gone(short_dir: Path) -> None:
    """A read of 0 bytes, as an empty packet is too: neither a loss nor a proof."""
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", **quick()) as driver:
        first = driver.ok()
        old = daemons.host(0)
        old.say(b"")
        driver.ok()
        old.channel.socket.shutdown(socket.SHUT_WR)
        for _ in range(50):
            assert driver.step()[0].session == first.session
        assert driver.shim.status().losses == {}
        lose_by_silence(driver, old)
        driver.session(other_than=first.session)
        assert daemons.host(1).base is None, "its socket is not closed, so its region is not adopted"
        assert driver.shim.status().regions.fenced == 1


def test_a_region_that_was_offered_stays_fenced_until_that_connections_peer_is_gone(short_dir: Path) -> None:
    def takes_and_stops(host: Host) -> None:
        host.take_hello()
        host.welcome()
        host.take_region()
        host.over.wait(PATIENCE_S)

    scripts = [serving, takes_and_stops, serving]
    with Daemons(short_dir / "e", scripts) as daemons, shim_with(short_dir / "e", handshake_s=0.2) as driver:
        first = driver.ok()
        daemons.host(0).die()
        driver.session(other_than=first.session)
        driver.ok()
        stopped, now = daemons.host(1), daemons.host(2)
        assert stopped.base is not None
        assert now.base is None, "the region is in the hands of a daemon that may still adopt it"
        assert stopped.on_words.word(Word.LOST) == 1, "and should not"
        assert driver.shim.status().regions.fenced == 1
        stopped.die()
        until(lambda: driver.shim.status().regions.free == 1, "free")


def test_a_failed_write_is_no_proof(short_dir: Path) -> None:
    """ATTACH cannot be written, and yet the daemon is there: who knows what it has got."""

    def deaf(host: Host) -> None:
        host.take_hello()
        host.channel.socket.shutdown(socket.SHUT_RD)
        host.welcome()
        host.over.wait(PATIENCE_S)

    with (
        Daemons(short_dir / "e", [serving, deaf, serving]) as daemons,
        shim_with(short_dir / "e", handshake_s=0.2) as driver,
    ):
        first = driver.ok()
        daemons.host(0).die()
        driver.session(other_than=first.session)
        assert daemons.host(2).base is None
        assert driver.shim.status().regions.fenced == 1
        daemons.host(1).die()
        until(lambda: driver.shim.status().regions.free == 1, "free")


def test_a_daemon_that_will_not_adopt_makes_a_region(short_dir: Path) -> None:
    def refuses(host: Host) -> None:
        host.take_hello()
        host.welcome()
        received = host.channel.receive(PATIENCE_S)
        assert isinstance(received.message, m.Attach)
        received.close_fds()
        host.channel.send(m.Refused(code="attach", reason="not this one"))

    with Daemons(short_dir / "e", [serving, refuses, serving]) as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        daemons.host(0).die()
        driver.session(other_than=first.session)
        driver.ok()
        assert daemons.host(2).base is None
        until(lambda: driver.shim.status().regions.free == 1, "the refused one is another daemon's to take")


def test_regions_are_few(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", **quick(regions=2)) as driver:
        for number in range(2):
            last = driver.ok()
            lose_by_silence(driver, daemons.host(number))
            if number == 0:
                driver.session(other_than=last.session)
        until(lambda: "all 2 regions" in (driver.shim.status().target_only or ""), "it says what is missing")
        assert driver.step()[0].skip is Skip.NO_SESSION
        assert driver.shim.status().registrations == 2
        daemons.host(0).die()
        driver.session()
        driver.ok()
        assert driver.shim.status().registrations == 2


@pytest.mark.parametrize("failing", [1, 9])
def test_a_region_in_which_a_submit_failed_never_comes_back(short_dir: Path, failing: int) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        driver.stream.fail_nth(failing, errno.EIO)
        with pytest.raises(SubmitFailed):
            driver.submit()
        drained(driver.stream)
        driver.session(other_than=first.session)
        daemons.host(0).die()
        second = driver.ok()
        assert daemons.host(1).base is None
        daemons.host(1).die()
        driver.session(other_than=second.session)
        driver.ok()
        assert daemons.host(2).region_id == daemons.host(1).region_id
        status = driver.shim.status()
        assert (status.regions.poisoned, status.regions.in_use, status.regions.free) == (1, 1, 0)
        assert status.losses == {"SUBMIT": 1, "HANGUP": 1}


def test_a_region_whose_rounds_the_stream_is_not_past_is_not_adopted(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        driver.stream.work(1_500_000_000)
        driver.submit()
        daemons.host(0).die()
        driver.session(other_than=first.session)
        assert daemons.host(1).base is None
        assert driver.shim.status().regions.settling == 1
        drained(driver.stream)
        until(lambda: driver.shim.status().regions.free == 1, "free once the stream is past it")


def test_a_stream_that_is_about_to_be_past_them_is_waited_for(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        driver.stream.work(60_000_000)
        driver.submit()
        daemons.host(0).die()
        driver.session(other_than=first.session)
        assert daemons.host(1).base == 2


def test_nothing_grows(short_dir: Path) -> None:
    """Descriptors, threads and maps after thirty losses are those after three."""

    def held() -> tuple[int, int, int]:
        maps = Path("/proc/self/maps").read_text().count("memfd:dsv41-region")
        threads = [path.joinpath("comm").read_text() for path in Path("/proc/self/task").iterdir()]
        return sum(1 for _ in Path("/proc/self/fd").iterdir()), sum(name.startswith("hf-") for name in threads), maps

    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e", backoff_ms=(1.0, 5.0)) as driver:
        seen = []
        for number in range(30):
            last = driver.ok()
            daemons.host(number).die()
            driver.session(other_than=last.session)
            driver.ok()
            until(lambda n=number: daemons._threads[n].is_alive() is False, "the old one is over")  # type: ignore[misc]
            seen.append(held())
        assert max(seen[3:]) <= max(seen[:3])
        assert driver.shim.geometry == SMALL
