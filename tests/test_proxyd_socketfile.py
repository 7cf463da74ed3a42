# SPDX-License-Identifier: Apache-2.0
"""The socket's path: who may take it, what is left alone, what is left behind."""

from __future__ import annotations

import errno
import os
import socket
import stat

from pathlib import Path

import pytest

from proxyd.errors import StartError
from proxyd.service.socketfile import SocketFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


def taken(path: Path) -> SocketFile:
    """Take the path as the daemon does."""
    file = SocketFile(path)
    file.listening.listen()
    return file


def open_fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def leave(file: SocketFile) -> None:
    file.listening.close()
    file.close()


def test_mode_is_0660_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        file = taken(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert os.umask(0) == 0
        leave(file)
    finally:
        os.umask(before)


def test_nothing_is_left_after_a_clean_end(path: Path) -> None:
    leave(taken(path))
    assert list(path.parent.iterdir()) == []


def test_a_second_daemon_is_refused_and_the_first_goes_on(path: Path) -> None:
    file = taken(path)
    with pytest.raises(StartError, match="another daemon serves"):
        SocketFile(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as engine:
        engine.connect(str(path))
    leave(file)


def test_a_live_socket_without_a_lock_is_left_alone(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(StartError, match="somebody listens"):
            SocketFile(path)
        assert path.is_socket()
    assert not path.with_name("engine.sock.lock").exists()


def test_a_live_stream_socket_is_left_alone(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(StartError, match="somebody listens"):
            SocketFile(path)
        assert path.is_socket()


def test_the_socket_and_lock_of_a_dead_daemon_are_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
        dead.listen()
    path.with_name("engine.sock.lock").touch()
    file = taken(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as engine:
        engine.connect(str(path))
    assert path.is_socket()
    leave(file)


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_no_socket_is_never_removed(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(path.parent / "elsewhere")
    with pytest.raises(StartError, match="is no socket"):
        SocketFile(path)
    assert os.path.lexists(path)
    assert not path.with_name("engine.sock.lock").exists()


def test_a_socket_that_somebody_put_there_since_is_not_removed(path: Path) -> None:
    file = taken(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(path))
        leave(file)
        assert path.is_socket()


def test_a_missing_directory_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="there is no directory"):
        SocketFile(tmp_path / "missing" / "engine.sock")


def test_a_directory_is_made_one_level_and_not_for_others_to_write(tmp_path: Path) -> None:
    path = tmp_path / "run" / "engine.sock"
    before = os.umask(0)
    try:
        file = SocketFile(path, make_directory=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
    leave(file)
    assert list(path.parent.iterdir()) == []
    with pytest.raises(StartError, match="there is no directory"):
        SocketFile(tmp_path / "one" / "two" / "engine.sock", make_directory=True)
    assert not (tmp_path / "one").exists()


def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "run" / "engine.sock"
    path.parent.mkdir(mode=0o711)
    leave(SocketFile(path, make_directory=True))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o711


def test_a_directory_below_one_that_hands_its_bits_down(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    leave(SocketFile(tmp_path / "run" / "engine.sock", make_directory=True))
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o755


def test_a_directory_that_cannot_be_seen_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object, **__: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", closed)
    monkeypatch.setattr(Path, "lstat", closed)
    with pytest.raises(StartError, match="no right to write in"):
        SocketFile(tmp_path / "engine.sock")


def test_no_directory_is_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match="there is no directory"):
        SocketFile(tmp_path / "run" / "engine.sock", make_directory=True)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kind", ["link", "mode", "full"])
def test_what_was_put_in_the_directorys_place_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """By somebody who may write beside it, right after it was made."""
    directory = tmp_path / "run"
    (tmp_path / "other").mkdir()
    mkdir = Path.mkdir

    def swapped(self: Path, mode: int = 0o777) -> None:
        mkdir(self, mode)
        if kind == "link":
            self.rmdir()
            self.symlink_to(tmp_path / "other")
        elif kind == "mode":
            self.chmod(0o777)
        else:
            (self / "engine.sock.lock").touch()

    monkeypatch.setattr(Path, "mkdir", swapped)
    with pytest.raises(StartError, match=r"replaced|Not a directory|symbolic"):
        SocketFile(directory / "engine.sock", make_directory=True)
    assert list((tmp_path / "other").iterdir()) == []


def test_refusals_leak_no_descriptor(path: Path) -> None:
    file = taken(path)
    before = open_fds()
    for _ in range(20):
        with pytest.raises(StartError):
            SocketFile(path)
    assert open_fds() == before
    leave(file)
