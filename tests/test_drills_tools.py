# SPDX-License-Identifier: Apache-2.0
"""What drills use to do harm: frames on the wire, replies that do not fit, a bad network, a log that is listened to."""

from __future__ import annotations

import array
import contextlib
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time

from pathlib import Path

import pytest

from rich.console import Console

import engine_shim

from dsv41_rehearse.drills import flood, relay
from dsv41_rehearse.drills.drill import Plan
from dsv41_rehearse.drills.misdeeds import Deed, done_to, session_of, type_of
from dsv41_rehearse.drills.row import Row
from dsv41_rehearse.drills.said import Said
from dsv41_rehearse.drills.scrape import grown
from dsv41_rehearse.drills.stage import Stage
from dsv41_rehearse.drills.tun import Board, Carrier, Weather
from dsv41_rehearse.drills.unharmed import Held
from dsv41_rehearse.drills.zmtp import GREETING_BYTES, Frames, frame
from hostflag.control import SessionGeometry
from hostflag.messages import Geometry
from hostflag.wire import BadMessage, Kind, Reply, Status, decode_header, decode_reply, encode_reply


GEOMETRY = SessionGeometry.of(
    Geometry(slots=4, max_requests=4, state_slots=8, row_bytes=64, drafts=5, vocab=256, window=16, ring_bytes=1 << 20)
)
SESSION, ROUND = 0x1122334455667788, 77


def reply(requests: int = 2) -> bytes:
    ids = memoryview(array.array("q", range(requests * GEOMETRY.drafts)))
    return encode_reply(Reply(SESSION, ROUND, Status.OK, requests, ids, memoryview(b"")), GEOMETRY)


def test_frames_come_out_as_they_went_in_however_they_are_cut() -> None:
    parts = [frame(b"short"), frame(b"x" * 300), frame(b"a", more=True), frame(b"b"), frame(b"")]
    whole = bytes(GREETING_BYTES) + b"".join(parts)
    chance = random.Random(1)
    for _ in range(50):
        frames, at, out = Frames(), 0, []
        while at < len(whole):
            step = chance.randint(1, 40)
            out += list(frames.feed(whole[at : at + step]))
            at += step
        assert b"".join(one.wire for one in out) == whole
        bodies = [one.body for one in out if one.plain]
        assert bodies == [b"short", b"x" * 300, b""], "messages of several parts are not plain"


def test_a_greeting_is_passed_on_at_once() -> None:
    assert [one.wire for one in Frames().feed(b"\xff" * 10)] == [b"\xff" * 10]


@pytest.mark.parametrize("deed", [deed for deed in Deed if Deed.NONE < deed < Deed.LATE])
def test_what_is_done_to_a_reply_makes_it_unfit(deed: Deed) -> None:
    good = reply()
    assert (session_of(good), type_of(good)) == (SESSION, Kind.REPLY)
    spoilt = done_to(good, deed)
    try:
        header = decode_header(spoilt)
        if header.kind is Kind.REPLY and (header.session, header.round) == (SESSION, ROUND):
            decoded = decode_reply(header, spoilt, GEOMETRY)
            assert decoded.n_requests != 2, "it is still sound"
    except BadMessage:
        pass


def carry(tmp_path: Path, weather: Weather, packets: int) -> tuple[list[int], tuple[int, int, int]]:
    """Send numbered packets through a network with that weather; return those that came, in order, and its counts."""
    board = Board(tmp_path / "board")
    board.weather = weather
    near, far = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    for end in (*near, *far):
        end.setblocking(False)
    carrier = Carrier(board, (near[0].fileno(), far[0].fileno()), 1)
    for number in range(packets):
        near[1].send(number.to_bytes(4, "big"))
    until = time.monotonic() + 20
    while sum(board.counts[:2]) < packets and time.monotonic() < until:
        carrier.turn()
    came = []
    with contextlib.suppress(BlockingIOError):
        while True:
            came.append(int.from_bytes(far[1].recv(4), "big"))
    for end in (*near, *far):
        end.close()
    return came, board.counts


def test_fine_weather_carries_everything_in_order(tmp_path: Path) -> None:
    came, counts = carry(tmp_path, Weather(), 50)
    assert came == list(range(50))
    assert counts == (50, 0, 0)


def test_loss_and_a_cut_are_counted(tmp_path: Path) -> None:
    came, (passed, lost, _) = carry(tmp_path, Weather(loss=0.5), 100)
    assert len(came) == passed
    assert 20 < lost < 80
    assert came == sorted(came)


def test_a_cut_network_says_nothing(tmp_path: Path) -> None:
    assert carry(tmp_path, Weather(cut=True), 20) == ([], (0, 20, 0))


def test_reordered_packets_overtake(tmp_path: Path) -> None:
    came, (_, _, overtaken) = carry(tmp_path, Weather(delay_ms=20.0, reordered=0.3), 60)
    assert sorted(came) == list(range(60))
    assert came != sorted(came)
    assert overtaken > 0


def test_a_flood_that_does_not_begin_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood, "BACK_S", 0.02)
    silent = relay.Relay.__new__(relay.Relay)
    silent.board = relay.Board(tmp_path / "board")
    floods = flood.Floods(Stage(plan=Plan("quick", 1, Console())), silent, 1, tmp_path / "socket")
    floods._flood(Deed.SPAM, 7)
    assert floods.faults == ["no flood began (SPAM)"]
    monkeypatch.setattr(silent, "ask", lambda *_, **__: silent.board.set(began_ns=1))
    floods._flood(Deed.SPAM, 7)
    assert len(floods.faults) == 1


def test_said_keeps_lines_and_leaves_the_log_as_it_was() -> None:
    log = logging.getLogger(engine_shim.__name__)
    before = log.level, log.propagate, list(log.handlers)
    with Said() as said:
        log.info("a session")
        log.error("the budget is spent")
    assert said.lines("budget", logging.ERROR) == ["the budget is spent"]
    assert said.lines("session") == ["a session"]
    assert said.lines("session", logging.ERROR) == []
    assert (log.level, log.propagate, log.handlers) == before


def test_a_counter_that_is_new_grew_from_nothing() -> None:
    assert grown({"a": 1.0}, {"a": 3.0, "b": 2.0}, "a") == 2
    assert grown({}, {"b": 2.0}, "b") == 2


def test_what_a_process_holds_more_than_before_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv41_rehearse.drills.unharmed.SETTLED_S", 0.1)
    held = Held(os.getpid())
    kept = os.open(os.devnull, os.O_RDONLY)
    row = Row("x", "y")
    held.back(row, 1_000.0)
    os.close(kept)
    assert any("fds" in leak for leak in row.leaks)
    assert row.verdict == "WRONG"


def test_weather_is_shown_across_processes(tmp_path: Path) -> None:
    path = tmp_path / "board"
    one, other = Board(path), Board(path)
    one.weather = Weather(loss=0.25, delay_ms=3.0, cut=True)
    assert other.weather == Weather(loss=0.25, delay_ms=3.0, cut=True)
    other.counts = 5, 6, 7
    assert one.counts == (5, 6, 7)


FORKED = """
import threading, time
from dsv41_rehearse import interrupts
from dsv41_rehearse.drills.forked import living_child

def act():
    with living_child():
        print("there", flush=True)
        time.sleep(0.5)

with interrupts.heeded():
    thread = threading.Thread(target=act)
    try:
        thread.start()
        thread.join()
    except KeyboardInterrupt:
        thread.join()
        print("interrupted")
"""


def group_is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_ctrl_c_ends_a_forked_child_too() -> None:
    """It comes to the whole group: the child of a drill once went on with the drill's own work then, and was waited for without end."""
    drill = subprocess.Popen([sys.executable, "-c", FORKED], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert drill.stdout is not None
        assert drill.stdout.readline() == "there\n"
        os.killpg(drill.pid, signal.SIGINT)
        assert drill.communicate(timeout=20)[0] == "interrupted\n"
        # What was orphaned is reaped by whoever is process 1 here, in its own time.
        until = time.monotonic() + 20
        while group_is_there(drill.pid) and time.monotonic() < until:
            time.sleep(0.05)
        assert not group_is_there(drill.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(drill.pid, signal.SIGKILL)
        drill.wait()
