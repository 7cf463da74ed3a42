# SPDX-License-Identifier: Apache-2.0
"""Key files: what is a key, whose rights are too wide, and that no fault shows what stands in a file."""

from __future__ import annotations

import os
import resource
import stat

from pathlib import Path

import pytest
import zmq

from zmq.utils import z85

from hostflag.keys import CREDENTIALS, KeyFault, read_allowed, read_public, read_secret, write_pair


PUBLIC, SECRET = zmq.curve_keypair()


def secret_file(directory: Path, content: bytes = SECRET + b"\n", mode: int = 0o600) -> Path:
    path = directory / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def fault_of(path: Path) -> str:
    with pytest.raises(KeyFault) as caught:
        read_secret(path)
    assert str(path) in str(caught.value)
    assert SECRET.decode() not in str(caught.value)
    return str(caught.value)


def test_a_pair_is_written_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        key, pub = write_pair(tmp_path, "daemon")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (key, pub)] == [0o600, 0o644]
    assert read_secret(key).public == read_public(pub)
    assert read_allowed(pub) == {z85.decode(read_public(pub))}
    assert key.read_text(encoding="ascii").strip() not in repr(read_secret(key))


def test_a_pair_overwrites_nothing_and_leaves_no_half(tmp_path: Path) -> None:
    (tmp_path / "daemon.pub").write_text("mine", encoding="ascii")
    with pytest.raises(KeyFault, match=r"daemon\.pub is there already"):
        write_pair(tmp_path, "daemon")
    assert [path.name for path in tmp_path.iterdir()] == ["daemon.pub"]
    (tmp_path / "worker.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFault, match=r"worker\.key is there already"):
        write_pair(tmp_path, "worker")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("room", [0, 10])
def test_a_pair_for_which_there_is_no_room_leaves_nothing(tmp_path: Path, room: int) -> None:
    """A disk that is full, here a file that may not grow: nothing lies there that the next try would leave alone."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(KeyFault, match=r"cannot write .*daemon\.key: File too large"):
            write_pair(tmp_path, "daemon")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
    assert write_pair(tmp_path, "daemon")


def test_a_pair_whose_making_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.fchmod, [0]

    def interrupted(fd: int, mode: int) -> None:
        calls[0] += 1
        if calls[0] == 2:  # the second half
            raise KeyboardInterrupt
        real(fd, mode)

    monkeypatch.setattr(os, "fchmod", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_pair(tmp_path, "daemon")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o601, 0o610])
def test_a_secret_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    assert f"mode {mode:04o}" in fault_of(secret_file(tmp_path, mode=mode))
    assert "chmod 600" in fault_of(secret_file(tmp_path, mode=mode))


def test_a_credential_of_systemd_shows_its_acl_as_a_right_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CREDENTIALS, str(tmp_path))
    assert read_secret(secret_file(tmp_path, mode=0o440)).public == PUBLIC
    assert "mode 0444" in fault_of(secret_file(tmp_path, mode=0o444))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_that_belongs_to_somebody_else_is_refused(tmp_path: Path) -> None:
    path = secret_file(tmp_path)
    os.chown(path, 12345, 12345)
    assert "belongs to uid 12345" in fault_of(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds 0 keys"),
        (b"\n# nothing\n#\n", "holds 0 keys"),
        (SECRET + b"\n" + SECRET, "holds 2 keys"),
        (SECRET[:-1], "line 1: no key"),
        (SECRET + b"x", "line 1: no key"),
        (b"# one\n" + SECRET[:-1] + b"~", "line 2: no key"),
        (b"#" * 40, "no key"),  # letters of Z85, but more than 32 bits
        (SECRET[:-1] + b"\xff", "no key"),
        (b"\0" * 5000, "no key"),
        (b"\n" * (1 << 20) + b"x", "no file of keys"),
    ],
)
def test_what_is_no_key(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in fault_of(secret_file(tmp_path, content))


def test_what_is_no_file(tmp_path: Path) -> None:
    assert "No such file" in fault_of(tmp_path / "missing")
    assert "no regular file" in fault_of(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert "no regular file" in fault_of(tmp_path / "fifo")  # and does not wait for a writer


def test_allowed_keys_may_have_names_and_comments(tmp_path: Path) -> None:
    other, _ = zmq.curve_keypair()
    path = tmp_path / "allowed"
    path.write_bytes(b"# daemons\n\n" + PUBLIC + b"  host a\n" + other + b"\n")
    assert read_allowed(path) == {z85.decode(PUBLIC), z85.decode(other)}
    path.write_bytes(b"# none yet\n")
    with pytest.raises(KeyFault, match="allows nobody"):
        read_allowed(path)
