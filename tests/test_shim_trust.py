# SPDX-License-Identifier: Apache-2.0
"""Whom an engine takes for its daemon: by the sender of each message, never by who made the listening socket."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from engine_harness import PATIENCE_S, SMALL
from engine_peer import WELCOME, Peer, attempt, daemon

from engine_shim import HandshakeFailed, SessionOptions, ShimOptions, SoftStream, connect, trust
from engine_shim.handshake import reach
from engine_shim.trust import check_sender, trusted_uids
from hostflag import messages as m
from hostflag.channel import Credentials, engine_end
from hostflag.messages import EngineIdentity
from proxyd.sessions.peer import peer_of


STRANGER: Final = 12_345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as somebody else")
# Serves one connection of an inherited listener, as a daemon under socket activation does; needs nothing but Python.
SERVE: Final = """
import os, socket, sys
os.setuid(int(sys.argv[3]))
connection, _ = socket.socket(fileno=int(sys.argv[1])).accept()
connection.recv(65536)
connection.send(sys.argv[2].encode())
connection.recv(65536)
"""


@contextlib.contextmanager
def activated(directory: Path, answer: m.Message, user: int | None = None) -> Iterator[tuple[Path, int]]:
    """Listen here, serve from another process: what systemd does. Gives the path and that process's id."""
    path = directory / "e.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(1)
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            SERVE,
            str(listener.fileno()),
            msgspec.json.encode(answer).decode(),
        ]
        command.append(str(os.geteuid() if user is None else user))
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            yield path, process.pid
        finally:
            process.kill()
            process.wait(PATIENCE_S)


def attempt_with(path: Path, *uids: int) -> None:
    with SoftStream() as stream:
        connect(
            path, geometry=SMALL, model="test", engine=EngineIdentity(name="e"), stream=stream,
            timeout_s=PATIENCE_S, options=SessionOptions(daemon_uids=uids),
        )  # fmt: skip


def test_a_message_names_its_sender_where_the_socket_names_who_listened(short_dir: Path) -> None:
    """Under socket activation SO_PEERCRED is somebody else: with it, a wrong daemon would be taken, or the right one not."""
    with activated(short_dir, WELCOME) as (path, pid), contextlib.closing(reach(path, PATIENCE_S)) as channel:
        channel.send(m.Create())
        sender = channel.receive(PATIENCE_S).credentials
        assert sender == Credentials(pid=pid, uid=os.geteuid(), gid=os.getegid())
        assert peer_of(channel.socket).pid == os.getpid()


def test_who_does_not_ask_is_not_told() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with engine_end(ours) as channel, theirs:
        theirs.send(msgspec.json.encode(WELCOME))
        assert channel.receive(PATIENCE_S).credentials is None


@as_root
def test_a_daemon_of_a_stranger_is_refused_though_root_listened(short_dir: Path) -> None:
    with (
        activated(short_dir, WELCOME, STRANGER) as (path, _),
        pytest.raises(HandshakeFailed, match=f"runs as uid {STRANGER}.*name it"),
    ):
        attempt(path)


@as_root
def test_a_strangers_refusal_is_not_believed_either(short_dir: Path) -> None:
    with (
        activated(short_dir, m.Refused(code="busy", reason="wait for ever"), STRANGER) as (path, _),
        pytest.raises(HandshakeFailed, match=f"runs as uid {STRANGER}"),
    ):
        attempt(path)


@as_root
def test_a_stranger_that_is_named_is_taken(short_dir: Path) -> None:
    with (
        activated(short_dir, m.Ready(locked=True), STRANGER) as (path, _),
        pytest.raises(HandshakeFailed, match="Ready where Welcome was due"),
    ):
        attempt_with(path, STRANGER)


@as_root
def test_the_owner_of_the_directory_is_taken(short_dir: Path) -> None:
    os.chown(short_dir, STRANGER, -1)
    with (
        activated(short_dir, m.Ready(locked=True), STRANGER) as (path, _),
        pytest.raises(HandshakeFailed, match="Ready where Welcome was due"),
    ):
        attempt(path)


def test_a_daemon_of_our_own_user_is_taken(short_dir: Path) -> None:
    def script(peer: Peer) -> None:
        peer.hello()
        peer.channel.send(m.Refused(code="busy", reason="later"))

    with daemon(short_dir, script) as path, pytest.raises(Exception, match="later"):
        attempt(path)


@as_root
@pytest.mark.parametrize(("mode", "owner_counts"), [(0o755, True), (0o700, True), (0o775, False), (0o1777, False)])
def test_the_sockets_owner_counts_where_nobody_else_could_have_put_it_there(
    short_dir: Path, mode: int, owner_counts: bool
) -> None:
    path = short_dir / "e.sock"
    path.touch()
    os.chown(path, STRANGER, -1)
    short_dir.chmod(mode)
    assert (STRANGER in trusted_uids(path)) is owner_counts


def test_a_link_to_the_socket_is_followed_to_where_it_lies(short_dir: Path) -> None:
    (short_dir / "real").mkdir(mode=0o755)
    (short_dir / "real" / "e.sock").touch()
    link = short_dir / "link"
    link.symlink_to(short_dir / "real" / "e.sock")
    assert trusted_uids(link) == trusted_uids(short_dir / "real" / "e.sock")


def test_where_nothing_is_there_only_root_and_we_are_trusted(short_dir: Path) -> None:
    assert trusted_uids(short_dir / "no" / "such" / "e.sock") == {0, os.geteuid()}


@as_root
def test_the_number_of_everybody_unmapped_is_nobodys(short_dir: Path) -> None:
    os.chown(short_dir, trust._overflow_uid(), -1)
    path = short_dir / "e.sock"
    path.touch()
    assert trusted_uids(path) == {0}
    assert trusted_uids(path, [trust._overflow_uid()]) == {0, trust._overflow_uid()}


def test_a_kernel_that_says_nothing_is_no_proof() -> None:
    with pytest.raises(HandshakeFailed, match="does not say who"):
        check_sender(None, frozenset({0}))


def test_users_from_the_environment() -> None:
    given = {"VLLM_DSPARK_REMOTE_DAEMON_USERS": "root, 12345"}
    assert ShimOptions.from_environment(given).session.daemon_uids == (0, 12345)
    for bad in ("nosuchuser", "1,,2", "-1", "4294967295"):
        with pytest.raises(ValueError, match="DAEMON_USERS"):
            ShimOptions.from_environment({"VLLM_DSPARK_REMOTE_DAEMON_USERS": bad})
