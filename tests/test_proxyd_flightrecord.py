# SPDX-License-Identifier: Apache-2.0
"""The line that a lost session leaves: its counters and last rounds; never endless, whatever an engine wrote there."""

from __future__ import annotations

import json
import os
import socket

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from engine_harness import LARGE, Device
from proxyd_engine import Engine, gone, last_word
from proxyd_harness import Daemon, until
from test_engine_real import first_ok, session_with, worker

from engine_shim import SoftStream
from hostflag import geometry as geometries
from hostflag import messages as m
from hostflag._hostflag import ffi, lib
from proxyd.sessions.flightrecord import ROUNDS


MOST_BYTES: Final = 4096


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir) as running:
        yield running


def test_a_lost_session_leaves_its_counters(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready()
        engine.round(1)
        engine.submit(2)
    line = daemon.wait_for("flight record")
    assert (line["reason"], line["engine"]) == ("the engine is gone", "engine")
    assert (line["words"]["submitted"], line["words"]["gathered"], line["words"]["consumed"]) == (2, 2, 1)


def test_the_last_rounds_are_told_with_their_times(short_dir: Path) -> None:
    with (
        worker(short_dir) as endpoint,
        Daemon(short_dir, "--network-timeout-ms=10000", worker=endpoint) as daemon,
        SoftStream() as stream,
        session_with(daemon.path, stream) as session,
    ):
        for _ in range(ROUNDS + 4):
            first_ok(session, stream, Device(LARGE))
        session.give_up()
        line = daemon.wait_for("flight record")
    assert line["reason"] == "the engine gave the session up"
    assert len(line["rounds"]) == ROUNDS
    assert all(" ok, 1 requests, 1 rows, gathered " in each and ", decided " in each for each in line["rounds"][:-1])
    assert len(json.dumps(line)) < MOST_BYTES


def test_a_planned_end_leaves_none(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready()
        engine.channel.send(m.Goodbye())
        engine.channel.socket.shutdown(socket.SHUT_WR)
        assert isinstance(last_word(engine), m.Bye)
        gone(engine)
    daemon.wait_for("session over")
    assert daemon.said("flight record") == []


def test_junk_in_the_recorder_makes_no_endless_line(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready()
        engine.round(1)
        layout = ffi.new("struct hf_layout *")
        assert lib.hf_layout_of(geometries.to_c(engine.geometry), layout) == 0
        engine._mapped()[layout.stats : layout.rows] = os.urandom(layout.rows - layout.stats)
    line = daemon.wait_for("flight record")
    assert len(json.dumps(line)) < MOST_BYTES
    until(lambda: daemon.said("session over"), "it ends as it should")


def test_sessions_that_die_again_and_again_do_not_fill_the_log(daemon: Daemon) -> None:
    for _ in range(50):
        with Engine(daemon.path) as engine:
            engine.ready()
    until(lambda: daemon.scrape()['dsv41_proxyd_sessions{state="ending"}'] == 0, "all are over")
    assert 1 <= len(daemon.said("flight record")) <= 4
