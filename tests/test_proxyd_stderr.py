# SPDX-License-Identifier: Apache-2.0
"""A log that cannot be written: nothing is raised, and once it can be again it says what is missing."""

from __future__ import annotations

import os
import sys

from collections.abc import Iterator
from pathlib import Path

import pytest

from hostflag import stderr
from hostflag.stderr import FD, Stderr


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
