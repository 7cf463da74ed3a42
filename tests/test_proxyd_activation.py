# SPDX-License-Identifier: Apache-2.0
"""Sockets that somebody opened for the daemon: which one is taken, which are refused, what becomes of the rest."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from proxyd_engine import Engine, connect
from proxyd_harness import PATIENCE_S, Daemon, until
from proxyd_worker import Worker

from hostflag import messages as m
from hostflag.channel import operator_end
from proxyd.service.activation import take
from proxyd.sessions.peer import peer_of


ACTIVATE: Final = shutil.which("systemd-socket-activate")
PROGRAM: Final = """
import json, os, sys
from proxyd.service import activation
from proxyd.errors import StartError
os.environ["LISTEN_PID"] = os.environ["LISTEN_PID"].replace("self", str(os.getpid()))
try:
    taken = activation.take(os.environ)
    said = str(taken.path) if taken else None
    inherits = taken and taken.listening.get_inheritable()
except StartError as fault:
    said, inherits = "refused: " + str(fault), None
open_fds = [fd for fd in range(3, 10) if os.path.exists(f"/proc/self/fd/{fd}")]
left = [name for name in os.environ if name.startswith("LISTEN_")]
print(json.dumps([said, inherits, open_fds, left]))
"""


def passed(sockets: list[int], names: str = "", pid: str = "self", count: str | None = None) -> tuple[Any, ...]:
    """Return what a process makes of these descriptors, passed from 3 on: path or reason, inheritable, what is open, variables left."""

    def place() -> None:
        # High first: a descriptor may be where another one has to go.
        high = [os.dup2(fd, 100 + number) for number, fd in enumerate(sockets)]
        for number, fd in enumerate(high):
            os.dup2(fd, 3 + number)
        os.closerange(3 + len(sockets), 200)

    environment = {
        **os.environ,
        "LISTEN_FDS": str(len(sockets)) if count is None else count,
        "LISTEN_PID": pid,
        "LISTEN_FDNAMES": names,
    }
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parent.parent,
        env=environment,
        preexec_fn=place,
        close_fds=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return tuple(json.loads(process.stdout))


Maker = Callable[..., int]


@pytest.fixture
def make(short_dir: Path) -> Any:
    opened: list[socket.socket] = []

    def make(name: str = "s", kind: int = socket.SOCK_SEQPACKET, *, listening: bool = True) -> int:
        made = socket.socket(socket.AF_UNIX, kind)
        made.bind(f"{short_dir}/{name}")
        if listening:
            made.listen()
        opened.append(made)
        return made.fileno()

    yield make
    for each in opened:
        each.close()


def test_the_only_one_is_taken(make: Maker, short_dir: Path) -> None:
    assert passed([make()]) == (f"{short_dir}/s", False, [3], [])


def test_the_one_of_the_right_kind_is_taken_and_the_others_closed(make: Maker, short_dir: Path) -> None:
    others = [make("stream", socket.SOCK_STREAM), make("idle", listening=False)]
    assert passed([others[0], make(), others[1]]) == (f"{short_dir}/s", False, [4], [])


def test_the_one_with_the_name_is_taken(make: Maker, short_dir: Path) -> None:
    assert passed([make("a"), make("b")], names="x:engine") == (f"{short_dir}/b", False, [4], [])


@pytest.mark.parametrize(
    ("names", "kinds", "words"),
    [
        ("", ["good", "good"], "FileDescriptorName=engine"),
        ("engine:engine", ["good", "good"], "FileDescriptorName=engine"),
        ("engine:x", ["stream", "good"], "3: no Unix SOCK_SEQPACKET socket"),
        ("", ["stream"], "ListenSequentialPacket="),
        ("", ["idle"], "a socket that does not listen"),
        ("", ["file"], "no socket"),
    ],
)
def test_none_fits(make: Maker, names: str, kinds: list[str], words: str) -> None:
    with Path(os.devnull).open("rb") as file:
        makers: dict[str, Callable[[str], int]] = {
            "good": make,
            "stream": lambda name: make(name, socket.SOCK_STREAM),
            "idle": lambda name: make(name, listening=False),
            "file": lambda _name: file.fileno(),
        }
        fds = [makers[kind](f"s{number}") for number, kind in enumerate(kinds)]
        said, _, left_open, variables = passed(fds, names)
    assert said.startswith("refused: ")
    assert words in said
    assert (left_open, variables) == ([], [])


def test_more_are_announced_than_are_there(make: Maker) -> None:
    said, _, left_open, _ = passed([make("a", socket.SOCK_STREAM)], count="3")
    assert "4: not open; 5: not open" in said
    assert left_open == []


@pytest.mark.parametrize(
    ("pid", "count"), [("1", None), ("", None), ("self", "0"), ("self", "nonsense"), ("self", "-1")]
)
def test_what_is_not_for_us_is_left_alone(make: Maker, pid: str, count: str | None) -> None:
    said, _, left_open, variables = passed([make()], pid=pid, count=count)
    assert (said, left_open, variables) == (None, [3], [])


def test_nothing_passed() -> None:
    environment = {"LISTEN_FDNAMES": "x", "HOME": "/"}
    assert take(environment) is None
    assert environment == {"HOME": "/"}


def activated(short_dir: Path, *flags: str) -> Daemon:
    assert ACTIVATE
    path = short_dir / "passed.sock"
    command = [ACTIVATE, "--seqpacket", f"--listen={path}", "--fdname=engine"]
    return Daemon(short_dir, *flags, before=command)


@pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not installed (package systemd)")
def test_a_daemon_on_a_passed_socket(short_dir: Path) -> None:
    """It serves on it, says so, answers who connected before it was there, and leaves the file alone at its end."""
    path = short_dir / "passed.sock"
    daemon = activated(short_dir)
    until(path.exists, "the socket")
    with operator_end(connect(path)) as first, daemon, Worker(daemon.worker):
        ready = daemon.said("ready")[0]
        assert (ready["socket"], ready["passed"]) == (str(path), True)
        first.send(m.OperatorHello(protocol=m.PROTOCOL_VERSION))
        assert isinstance(first.receive(PATIENCE_S).message, m.Done)
        assert not daemon.path.exists()  # what --socket names is not made
        with Engine(path) as engine:
            engine.ready()
        with operator_end(connect(path)) as second:
            # Since the daemon listens itself, the kernel names it, not whoever opened the socket.
            assert peer_of(second.socket).pid == daemon.pid
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.join() == 0
    assert path.is_socket()
