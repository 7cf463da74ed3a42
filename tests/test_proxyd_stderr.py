# SPDX-License-Identifier: Apache-2.0
"""A log that cannot be written, or that nobody reads: nothing is raised or waited for, and once it can be again it says what is missing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import sys

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from proxyd_engine import Engine, connect
from proxyd_harness import PATIENCE_S, until
from test_proxyd_operator import ask

from hostflag import messages as m
from hostflag import stderr
from hostflag.channel import operator_end
from hostflag.stderr import FD, NOBODY_READS, Stderr


ROOT: Final = Path(__file__).resolve().parent.parent
PIPE_PAGES: Final = 2


@pytest.fixture
def before() -> Iterator[None]:
    kept = os.dup(FD)
    yield
    os.dup2(kept, FD)
    os.close(kept)


def lead_to(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, FD)
    os.close(fd)


def say(log: Stderr, line: str) -> None:
    log.write(line + "\n")
    log.flush()


@pytest.mark.usefixtures("before")
def test_lines_that_a_full_disk_did_not_take_are_told_of_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Stderr()
    monkeypatch.setattr(sys, "stderr", log)
    lead_to(Path("/dev/full"))
    for number in range(3):
        say(log, f"line {number}")
    assert log.lost == 3
    assert stderr.notes() == ("3 lines of the log were lost: No space left on device",)
    # Told of while the disk is still full: nothing of it is lost, and it is not tried again at once.
    assert stderr.take_lost() == (3, "No space left on device")
    say(log, "3 lines lost")
    assert (log.lost, stderr.take_lost()) == (3, None)
    assert stderr.notes() == ("3 lines of the log were lost: No space left on device",)
    say(log, "another")
    lead_to(tmp_path / "log")
    say(log, "on again")
    say(log, "and on")
    assert stderr.take_lost() == (4, "No space left on device")
    say(log, "4 lines lost")
    assert stderr.take_lost() is None
    assert stderr.notes() == ()
    assert (tmp_path / "log").read_text() == "on again\nand on\n4 lines lost\n"


@pytest.mark.usefixtures("before")
def test_it_is_told_without_another_line_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Stderr()
    monkeypatch.setattr(sys, "stderr", log)
    lead_to(Path("/dev/full"))
    say(log, "a line")
    assert stderr.take_lost() == (1, "No space left on device")
    say(log, "1 line lost")
    lead_to(tmp_path / "log")
    log._tell_at = 0.0
    assert stderr.take_lost() == (1, "No space left on device")
    say(log, "1 line lost")
    assert (tmp_path / "log").read_text() == "1 line lost\n"
    assert log.lost == 1


@pytest.mark.usefixtures("before")
def test_a_line_that_was_cut_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Stderr()
    lead_to(tmp_path / "log")
    real = os.write
    room = [4]

    def little(fd: int, data: bytes) -> int:
        if fd != FD:
            return real(fd, data)
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = real(fd, bytes(data)[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", little)
    say(log, "cut off")
    room[0] = 1000
    say(log, "whole")
    assert (tmp_path / "log").read_text() == "cut \nwhole\n"
    assert log.lost == 1


def little_pipe() -> tuple[int, int]:
    reader, log = os.pipe()
    fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, PIPE_PAGES * select.PIPE_BUF)
    return reader, log


def sockets() -> tuple[int, int]:
    reader, log = socket.socketpair()
    return reader.detach(), log.detach()


@contextlib.contextmanager
def unread(kind: str) -> Iterator[int]:
    """
    Make standard error one that nobody reads, and give the reader's end.

    What would wait is a fault of its own here, "Resource temporarily unavailable", and hangs no test.
    """
    reader, log = {"pipe": little_pipe, "terminal": os.openpty, "socket": sockets}[kind]()
    os.set_blocking(log, False)
    os.set_blocking(reader, False)
    os.dup2(log, FD)
    os.close(log)
    yield reader
    os.close(reader)


def drain(reader: int) -> bytes:
    pieces = []
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(reader, 1 << 16):
            pieces.append(piece)
    return b"".join(pieces)


@pytest.fixture
def unwaited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the writes to standard error that would have waited."""
    real = os.write
    waits: list[str] = []

    def write(fd: int, data: bytes) -> int:
        if fd != FD:
            return real(fd, data)
        try:
            written = real(fd, data)
        except BlockingIOError as fault:
            waits.append(str(fault))
            raise
        if written < len(data):
            waits.append(f"{written} of {len(data)}")
        return written

    monkeypatch.setattr(os, "write", write)
    return waits


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("size", [1, 100, 255, 256, 257, 5000])
@pytest.mark.parametrize("kind", ["pipe", "terminal", "socket"])
def test_a_reader_that_stands_still_costs_lines_and_no_time(kind: str, size: int, unwaited: list[str]) -> None:
    log = Stderr()
    with unread(kind) as reader:
        said = 0
        while not log.lost:
            said += 1
            assert said < 1 << 20, "it takes any number of lines"
            say(log, f"{said} " + "x" * size)
        for _ in range(3):
            say(log, "lost")
        assert log.note == f"4 lines of the log were lost: {NOBODY_READS}"
        taken = [drain(reader)]

        def goes_on() -> bool:
            before = log.lost
            say(log, "on again")
            taken.append(drain(reader))
            return log.lost == before

        def lines() -> list[str]:
            taken.append(drain(reader))
            return b"".join(taken).decode().splitlines()

        until(goes_on, "lines are taken again once somebody reads")
        until(lambda: "on again" in lines(), "it is read")
        # Whole lines in their order; then what was taken of the first that was lost, if anything, in a line of its own.
        wanted = [f"{number} " + "x" * size for number in range(1, said + 1)]
        found = [line for line in lines() if line != "on again"]
        assert found[: said - 1] == wanted[:-1]
        assert all(wanted[-1].startswith(rest) for rest in found[said - 1 :])
        assert len(found) <= said
        assert unwaited == []


def test_a_daemon_whose_log_nobody_reads_goes_on(short_dir: Path) -> None:
    """Engines, operators and its end do not wait for the log; once it is read, it says what is missing."""
    reader, log = little_pipe()
    path = short_dir / "e.sock"
    flags = [f"--socket={path}", "--metrics=off", f"--worker=ipc://{short_dir}/w", "--log-level=debug"]
    with subprocess.Popen([sys.executable, "-m", "proxyd", *flags], cwd=ROOT, stderr=log) as process:
        os.close(log)
        os.set_blocking(reader, False)
        try:
            until(path.exists, "it serves")

            def notes() -> tuple[str, ...]:
                with Engine(path) as engine:
                    engine.ready()  # a few lines
                with operator_end(connect(path)) as operator:
                    ask(operator, m.OperatorHello(protocol=m.PROTOCOL_VERSION))
                    status = ask(operator, m.StatusRequest())
                assert isinstance(status, m.Status)
                return tuple(note for note in status.notes if NOBODY_READS in note)

            until(notes, "lines are lost")
            read = [drain(reader)]
            assert b"log lines lost" not in read[0]

            def told() -> bool:
                notes()
                read.append(drain(reader))
                return b"log lines lost" in b"".join(read)

            until(told, "it is told")
            said = [line for line in b"".join(read).splitlines() if b"log lines lost" in line]
            assert json.loads(said[0])["reason"] == NOBODY_READS
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            os.close(reader)
