# SPDX-License-Identifier: Apache-2.0
"""Who may come in: by user, by group, as an operator; the socket's mode and group, from the first moment on."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from proxyd_engine import Engine, hello, refused, unharmed
from proxyd_harness import PATIENCE_S, Daemon

from hostflag import messages as m
from hostflag.verdicts import Verdict
from proxyd.config.peerkinds import GROUPS, USERS, SocketMode
from proxyd.config.settings import Settings
from proxyd.errors import RefusedError, StartError
from proxyd.service.socketfile import SocketFile
from proxyd.sessions.admission import Admission
from proxyd.sessions.peer import Peer, peer_of


STRANGER: Final = 12_345
GROUP: Final = 12_346
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
# Connects as another user; the directory is entered before, since tests' directories are closed to others.
SAY: Final = """
import os, socket, sys
os.setgroups([int(g) for g in sys.argv[3].split(",") if g])
os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[1]))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.settimeout(20)
    try:
        connection.connect("e.sock")
    except PermissionError:
        print("no right to connect"), sys.exit()
    connection.send(sys.argv[4].encode())
    print(connection.recv(65536).decode())
"""


def say(directory: Path, message: m.Message, *, uid: int = STRANGER, groups: str = "") -> str:
    """Return the daemon's answer to somebody else's first message."""
    text = msgspec.json.encode(message).decode()
    command = [sys.executable, "-I", "-S", "-c", SAY, str(uid), str(uid), groups, text]
    return subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout.strip()


def open_daemon(directory: Path, *flags: str) -> Daemon:
    directory.chmod(0o711)
    return Daemon(directory, "--socket-mode=0666", *flags)


@as_root
def test_with_nobody_named_the_sockets_mode_decides(short_dir: Path) -> None:
    with open_daemon(short_dir) as daemon:
        assert '"WELCOME"' in say(short_dir, hello())
        assert '"permission"' in say(short_dir, m.OperatorHello(protocol=m.PROTOCOL_VERSION))
        assert stat.S_IMODE(daemon.path.stat().st_mode) == 0o666


@as_root
def test_who_is_named_may_come_and_nobody_else(short_dir: Path) -> None:
    flags = [f"--allowed-users={STRANGER}", f"--allowed-groups={GROUP}"]
    with open_daemon(short_dir, *flags) as daemon, unharmed(daemon):
        assert '"WELCOME"' in say(short_dir, hello())
        answer = say(short_dir, hello(), uid=STRANGER + 5)
        assert '"permission"' in answer
        assert "security.allowed_users" in answer
        assert '"WELCOME"' in say(short_dir, hello(), uid=STRANGER + 5, groups=f"7,{GROUP}")
        line = daemon.wait_for("engine refused")
        assert (line["code"], line["uid"]) == ("permission", STRANGER + 5)
        for _ in range(5):
            say(short_dir, hello(), uid=STRANGER + 5)
        daemon.exactly("engine refused", 1)  # said once, whatever the number of tries
        assert daemon.scrape()['dsv41_proxyd_handshakes_total{outcome="permission"}'] == 6


@contextlib.contextmanager
def somebody_else(uid: int = STRANGER) -> Iterator[None]:
    """Connect as ``uid`` within: the kernel notes the effective user."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@as_root
def test_a_name_ends_no_session_of_another_user(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(short_dir)  # what is above it is closed to others
    with open_daemon(short_dir) as daemon, Engine(daemon.path) as ours:
        ours.ready("vllm")
        with somebody_else():
            theirs, again = Engine(Path("e.sock")), Engine(Path("e.sock"))
        with theirs, again:
            assert isinstance(theirs.ask(hello(engine=m.EngineIdentity(name="vllm"), deadline_ms=60_000.0)), m.Welcome)
            theirs.channel.send(m.Create())
            refused(theirs, "name", f"pid {os.getpid()} of uid 0", f"of uid {STRANGER}", "another name")
            line = daemon.wait_for("engine refused")
            assert (line["code"], line["pid"], line["uid"]) == ("name", os.getpid(), STRANGER)
            assert f"pid {os.getpid()} of uid 0" in line["reason"]
            assert ours.round(1) is Verdict.DISCONNECTED
            assert not ours.hung_up()
            again.ready("another")
            with Engine(daemon.path) as newer:
                newer.ready("vllm")
                assert not again.hung_up()
                assert isinstance(ours.receive(), m.Bye)


@as_root
def test_an_operator_that_is_named(short_dir: Path) -> None:
    with open_daemon(short_dir, f"--operator-users={STRANGER}"):
        assert '"DONE"' in say(short_dir, m.OperatorHello(protocol=m.PROTOCOL_VERSION))
        assert '"permission"' in say(short_dir, m.OperatorHello(protocol=m.PROTOCOL_VERSION), uid=STRANGER + 1)


@as_root
def test_a_reload_changes_who_may_come(short_dir: Path) -> None:
    config = short_dir / "proxyd.toml"
    config.write_text(f'[security]\nallowed_users = ["{STRANGER}"]\n', encoding="utf-8")
    with open_daemon(short_dir, f"--config={config}") as daemon, Engine(daemon.path) as engine:
        engine.ready()
        assert '"WELCOME"' in say(short_dir, hello())
        config.write_text('[security]\nallowed_users = ["root"]\n', encoding="utf-8")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("reloaded")
        assert '"permission"' in say(short_dir, hello())
        config.write_text('[security]\nallowed_users = ["no such user"]\n', encoding="utf-8")
        daemon.process.send_signal(signal.SIGHUP)
        assert "no user here" in str(daemon.wait_for("not reloaded: the configuration of before stays")["faults"])
        assert '"permission"' in say(short_dir, hello())
        assert not engine.hung_up()


@as_root
def test_a_sockets_group_lets_its_members_in(short_dir: Path) -> None:
    short_dir.chmod(0o711)
    with Daemon(short_dir, f"--socket-group={GROUP}") as daemon:
        status = daemon.path.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o660, GROUP)
        assert '"WELCOME"' in say(short_dir, hello(), groups=str(GROUP))
        assert say(short_dir, hello()) == "no right to connect"


@as_root
def test_no_moment_at_which_the_socket_is_open_to_more(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it is right after bind, and right before the chmod: closed to all but its owner."""
    seen = []
    give = SocketFile._give

    def look_first(self: SocketFile, group: int) -> None:
        seen.append(stat.S_IMODE(self._path.stat().st_mode))
        give(self, group)

    monkeypatch.setattr(SocketFile, "_give", look_first)
    made = SocketFile(short_dir / "e.sock", 0o666, str(GROUP))
    try:
        assert seen == [0o600]
        assert stat.S_IMODE((short_dir / "e.sock").stat().st_mode) == 0o666
    finally:
        made.listening.close()
        made.close()


@as_root
def test_what_was_put_in_the_sockets_place_is_not_given_away(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = short_dir / "secret"
    secret.touch(0o600)
    give = SocketFile._give

    def swapped(self: SocketFile, group: int) -> None:
        self._path.unlink()
        self._path.symlink_to(secret)
        give(self, group)

    monkeypatch.setattr(SocketFile, "_give", swapped)
    with pytest.raises(StartError, match="was replaced"):
        SocketFile(short_dir / "e.sock", 0o660, str(GROUP))
    assert (stat.S_IMODE(secret.stat().st_mode), secret.stat().st_gid) == (0o600, os.getegid())
    assert (short_dir / "e.sock").is_symlink(), "a path that is not ours is never unlinked"


def test_root_and_the_daemons_own_user_may_do_everything() -> None:
    closed = Admission(users=frozenset({STRANGER}), groups=frozenset({GROUP}))
    for uid in (0, os.geteuid()):
        closed.check_engine(Peer(1, uid, uid))
        closed.check_operator(Peer(1, uid, uid))
    for groups in ((), (GROUP + 1,)):
        with pytest.raises(RefusedError, match="allowed_groups"):
            closed.check_engine(Peer(1, STRANGER + 1, 1, frozenset(groups)))
    closed.check_engine(Peer(1, STRANGER + 1, 1, frozenset({GROUP})))


def test_names_are_those_of_this_machine() -> None:
    assert Admission.of(Settings(allowed_users=("root", "77"), operator_users=("root",))).users == {0, 77}
    with pytest.raises(ValueError, match="no user here"):
        Admission.of(Settings(allowed_users=("no such user",)))
    for bad in ("no such", "-1", "4294967295", "1.0", " "):
        with pytest.raises(ValueError, match="here"):
            USERS.from_toml([bad])
        with pytest.raises(ValueError, match="here"):
            GROUPS.from_toml([bad])
    with pytest.raises(ValueError, match="65 names"):
        USERS.from_toml(["0"] * 65)


@pytest.mark.parametrize("text", ["0066", "0670", "660x", "1660", "0o660", "777", "", "٠٦٦٠", "0400"])
def test_modes_that_no_socket_should_have(text: str) -> None:
    with pytest.raises(ValueError, match=r"octal|no such mode"):
        SocketMode().from_text(text)


def test_a_peers_groups_are_the_kernels_word() -> None:
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{directory}/s")
        listener.listen(1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as near:
            near.connect(f"{directory}/s")
            far, _ = listener.accept()
            with far:
                assert peer_of(far).groups == {os.getegid(), *os.getgroups()}
