# SPDX-License-Identifier: Apache-2.0
"""Several sessions on one daemon: they come, die and are replaced, and the others do not notice."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from proxyd_engine import GEOMETRY, Engine, connect, gone, hello, unharmed
from proxyd_harness import PATIENCE_S, Daemon, until

from hostflag import geometry as geometries
from hostflag import messages as m
from hostflag._hostflag import ffi, lib
from hostflag.channel import engine_end
from hostflag.messages import Geometry
from hostflag.region import Word
from hostflag.verdicts import Verdict
from proxyd.config.settings import Settings
from proxyd.errors import RefusedError
from proxyd.links.link import Links
from proxyd.links.workers import Workers
from proxyd.service.events import Events
from proxyd.sessions import roster
from proxyd.sessions.peer import Peer
from proxyd.sessions.roster import MAX_SESSIONS, Roster


PEER: Final = Peer(os.getpid(), os.geteuid(), os.getegid())


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("d")) as running:
        yield running


def test_without_a_worker_rounds_end_at_once(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready()
        assert [engine.round(t) for t in range(1, 10)] == [Verdict.DISCONNECTED] * 9


def test_a_newer_session_of_an_engine_ends_the_older(daemon: Daemon) -> None:
    with unharmed(daemon), Engine(daemon.path) as older, Engine(daemon.path) as newer, Engine(daemon.path) as other:
        older.ready("same")
        other.ready("another")
        newer.ready("same")
        assert isinstance(older.receive(), m.Bye)
        gone(older)
        assert not other.hung_up()
        assert newer.round(1) is Verdict.DISCONNECTED


NEWER: Final = """
import pathlib, sys
from proxyd_engine import Engine
Engine(pathlib.Path(sys.argv[1])).ready("shared")
"""


def test_two_processes_of_one_name_are_found_in_the_log(daemon: Daemon, root: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"}
    with Engine(daemon.path) as older, Engine(daemon.path) as same:
        older.ready("shared")
        same.ready("shared")  # of the same process: nothing to warn of
        gone(older)
        assert not daemon.said("session of another process replaced")
        with subprocess.Popen([sys.executable, "-c", NEWER, str(daemon.path)], env=environment) as newer:
            assert newer.wait(PATIENCE_S) == 0
        line = daemon.wait_for("session of another process replaced")
        assert (line["engine"], line["pid"], line["by_pid"]) == ("shared", os.getpid(), newer.pid)
        assert line["level"] == "warning"


def test_a_hello_alone_ends_nobody(daemon: Daemon) -> None:
    with Engine(daemon.path) as running, Engine(daemon.path) as curious:
        running.ready("same")
        assert isinstance(curious.ask(hello(engine=m.EngineIdentity(name="same"))), m.Welcome)
        assert running.round(1) is Verdict.DISCONNECTED


def test_ranks_are_engines_of_their_own(daemon: Daemon) -> None:
    with Engine(daemon.path) as zero, Engine(daemon.path) as one:
        zero.ready("ranked")
        assert isinstance(one.ask(hello(engine=m.EngineIdentity(name="ranked", rank=1))), m.Welcome)
        assert isinstance(one.ask(m.Create()), m.Region)
        assert zero.round(1) is Verdict.DISCONNECTED


VICTIM: Final = """
import pathlib, sys, time
from proxyd_engine import Engine
victim = Engine(pathlib.Path(sys.argv[1])).ready("victim")
for t in range(1, 6):
    victim.round(t)
victim.submit(6)
print("submitted", flush=True)
time.sleep(600)
"""


def test_an_engine_killed_in_the_middle_of_a_round(daemon: Daemon, root: Path) -> None:
    with unharmed(daemon):
        before = daemon.resources()
        environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"}
        command = [sys.executable, "-c", VICTIM, str(daemon.path)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as victim:
            assert victim.stdout
            assert victim.stdout.readline() == b"submitted\n"
            victim.kill()
        # By its name: the last line of a session that an earlier test ended may come at any time.
        until(lambda: ended(daemon, "victim") == ["the engine is gone"], "the session's last line")
        [line] = [line for line in daemon.said("session over") if line["engine"] == "victim"]
        assert line["pid"] == victim.pid
        assert line["rounds"].get("DISCONNECTED", 0) >= 5
        daemon.back_to(before)


def words_at(geometry: Geometry) -> int:
    """Return where the engine words lie: submitted, gathered, consumed, lost, a line each."""
    layout = ffi.new("struct hf_layout *")
    assert lib.hf_layout_of(geometries.to_c(geometry), layout) == 0
    return int(layout.engine_words)


def test_an_engine_that_gives_its_session_up(daemon: Daemon) -> None:
    with unharmed(daemon), Engine(daemon.path) as engine:
        engine.ready("quitter")
        os.pwrite(engine.region_fd, struct.pack("<I", 1), words_at(GEOMETRY) + 3 * lib.HF_LINE)
        assert engine.word(Word.LOST) == 1
        gone(engine)
        until(lambda: ended(daemon, "quitter") == ["the engine gave the session up"], "the session's last line")


@pytest.mark.parametrize("submitted", [GEOMETRY.slots + 1, 2**31, 2**32 - 1])
def test_words_that_no_sound_engine_writes_end_only_their_session(daemon: Daemon, submitted: int) -> None:
    name = f"mad {submitted}"
    with unharmed(daemon), Engine(daemon.path) as engine:
        engine.ready(name)
        os.pwrite(engine.region_fd, struct.pack("<I", submitted), words_at(GEOMETRY))
        gone(engine)
        until(lambda: ended(daemon, name) == ["the region is not sound"], "the session's last line")
        assert daemon.said("the engine's region is not sound")[-1]["reason"]


def ended(daemon: Daemon, engine: str) -> list[str]:
    """Return why the sessions of an engine ended."""
    return [line["reason"] for line in daemon.said("session over") if line["engine"] == engine]


def die_after_connect(daemon: Daemon) -> None:
    connect(daemon.path).close()


def die_after_hello(daemon: Daemon) -> None:
    with engine_end(connect(daemon.path)) as channel:
        channel.send(hello())


def die_after_create(daemon: Daemon) -> None:
    with engine_end(connect(daemon.path)) as channel:
        channel.send(hello())
        channel.send(m.Create())


def die_when_ready(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready("dies")


@pytest.mark.parametrize("die", [die_after_connect, die_after_hello, die_after_create, die_when_ready])
def test_engines_that_come_and_die_leave_nothing(daemon: Daemon, die: Callable[[Daemon], None]) -> None:
    with unharmed(daemon):
        before = daemon.resources()
        for _ in range(200):
            # Not more at once than may be: that is another test.
            until(lambda: daemon.resources()["threads"] < before["threads"] + 10, "earlier loops end")
            die(daemon)
        daemon.back_to(before)


def test_sessions_are_bounded_and_come_free_again(daemon: Daemon) -> None:
    until(lambda: daemon.scrape()['dsv41_proxyd_sessions{state="running"}'] == 0, "no session")
    before = daemon.resources()
    engines = []
    try:
        for number in range(MAX_SESSIONS):
            engines.append(Engine(daemon.path))
            engines[-1].ready(f"engine {number}")
        with Engine(daemon.path) as late:
            late.ask(hello(engine=m.EngineIdentity(name="late")))
            answer = late.ask(m.Create())
            assert isinstance(answer, m.Refused)
            assert answer.code == "busy"
        with Engine(daemon.path) as again:
            again.ready("engine 0")  # takes the place of its older session
        assert all(engine.round(1) is Verdict.DISCONNECTED for engine in engines[1:])
    finally:
        for engine in engines:
            engine.close()
    daemon.back_to(before)


def test_region_bytes_are_bounded_in_all(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "MAX_REGION_BYTES", geometries.region_bytes(GEOMETRY))
    links = Links(f"ipc://{short_dir}/w")
    events = Events()
    sessions = Roster(events, Workers(events, links, [links.endpoint]), Settings(), lambda: None)
    assert sessions.make_room(hello(), PEER) == geometries.region_bytes(GEOMETRY)
    larger = hello(geometry=msgspec.structs.replace(GEOMETRY, ring_bytes=GEOMETRY.ring_bytes * 2))
    with pytest.raises(RefusedError, match="ring_bytes") as refusal:
        sessions.make_room(larger, PEER)
    assert refusal.value.code == "memory"
    links.close()
    events.close()
