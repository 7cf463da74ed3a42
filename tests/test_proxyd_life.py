# SPDX-License-Identifier: Apache-2.0
"""The daemon from start to end: signals, exit statuses, what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.parse

from pathlib import Path
from typing import Final

import pytest

from proxyd_engine import Engine, gone, hello
from proxyd_harness import PATIENCE_S, Daemon, until

from hostflag import messages as m
from hostflag.channel import ChannelClosed, ChannelTimeout
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict
from hostflag.version import VERSION
from proxyd.service.server import SHUTDOWN_LIMIT_S


def run(root: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a daemon that is expected to end by itself."""
    command = [sys.executable, "-m", "proxyd", *flags]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_nothing_is_left(short_dir: Path, number: signal.Signals) -> None:
    with Daemon(short_dir) as daemon:
        assert daemon.path.is_socket()
        daemon.process.send_signal(number)
        assert daemon.join() == 0
    assert list(short_dir.iterdir()) == []
    assert daemon.said("ended")


def test_sessions_are_told_drained_and_let_go(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, Engine(daemon.path) as one, Engine(daemon.path) as two:
        one.ready("one")
        two.ready("two")
        one.submit(1)  # is released one way or another
        began = time.monotonic()
        daemon.process.terminate()
        for engine in (one, two):
            assert isinstance(engine.receive(), m.Draining)
            assert isinstance(engine.receive(), m.Bye)
            gone(engine)
            assert engine.word(Word.PHASE) == Phase.GONE
        assert one.finish(1) in {Verdict.DRAINING, Verdict.DISCONNECTED}
        assert daemon.join() == 0
        # The bound is what engines are promised; the slack is for a loaded machine.
        assert time.monotonic() - began < SHUTDOWN_LIMIT_S + 10
    assert [line["reason"] for line in daemon.said("session over")] == ["the daemon ends"] * 2
    assert list(short_dir.iterdir()) == []


def test_while_it_drains_the_phase_says_so_and_rounds_are_released(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, Engine(daemon.path) as engine:
        engine.ready()
        daemon.process.terminate()
        assert isinstance(engine.receive(), m.Draining)
        until(lambda: engine.word(Word.PHASE) in {Phase.DRAINING, Phase.GONE}, "the phase word")
        assert daemon.join() == 0


def test_an_engine_in_the_middle_of_its_handshake_is_refused(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, Engine(daemon.path) as engine:
        until(lambda: daemon.scrape()["dsv41_proxyd_handshaking"] == 1, "the connection is accepted")
        daemon.process.terminate()
        answer = engine.receive()
        assert isinstance(answer, m.Refused)
        assert answer.code == "draining"
        assert daemon.join() == 0


def test_a_second_signal_ends_it_at_once(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, Engine(daemon.path) as engine:
        engine.ready()
        daemon.process.terminate()
        assert isinstance(engine.receive(), m.Draining)
        daemon.process.terminate()
        assert daemon.join() in {0, 1}
    assert list(short_dir.iterdir()) == []


def test_sighup_with_nothing_changed_changes_nothing(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon:
        daemon.process.send_signal(signal.SIGHUP)
        line = daemon.wait_for("reloaded")
        assert (line["changed"], line["needs_restart"]) == ([], [])
        with Engine(daemon.path) as engine:
            engine.ready()


def test_a_second_daemon_on_the_same_socket_is_refused(short_dir: Path, root: Path) -> None:
    with Daemon(short_dir) as daemon:
        # Both are taken; what helps is said first.
        metrics = urllib.parse.urlsplit(str(daemon.said("ready")[0]["metrics"])).netloc
        second = run(root, f"--socket={daemon.path}", f"--metrics={metrics}")
        assert second.returncode == 1
        assert "another daemon serves" in second.stderr
        with Engine(daemon.path) as engine:
            engine.ready()


def test_a_killed_daemon_is_followed_by_another_on_the_same_socket(short_dir: Path) -> None:
    with Daemon(short_dir) as first, Engine(first.path) as orphan:
        orphan.ready()
        first.process.kill()
        first.join()
        gone(orphan)
        assert first.path.is_socket()
        with Daemon(short_dir) as second, Engine(second.path) as engine:
            engine.ready()
    assert list(short_dir.iterdir()) == []


def test_a_busy_metrics_port_is_said(short_dir: Path, root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run(root, f"--socket={short_dir}/e.sock", f"--metrics={address}")
    assert ended.returncode == 1
    assert f"cannot serve metrics on {address}" in ended.stderr
    assert list(short_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--socket=/nowhere/at/all/e.sock"], 1, "there is no directory"),
        (["--socket={dir}/file"], 78, "is no socket"),
        (["--worker=tcp://no such host:1"], 78, "--worker"),
        (["--worker=tcp://127.0.0.1:1", "--worker=tcp://a b:1"], 78, "--worker"),
        (["--socket=/"], 2, "a directory"),
        (["--socket={dir}/"], 2, "a directory"),
        (["--worker=nonsense"], 2, "tcp://HOST:PORT"),
        (["--no-such-flag"], 2, "unrecognized"),
        (["--network-timeout-ms=0"], 2, "from 1 to"),
    ],
)
def test_what_cannot_be_started_says_why(
    short_dir: Path, root: Path, flags: list[str], status: int, words: str
) -> None:
    plain = short_dir / "file"
    plain.touch()
    flags = [flag.format(dir=short_dir) for flag in flags]
    ended = run(root, f"--socket={short_dir}/e.sock", "--metrics=off", *flags)
    assert ended.returncode == status
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(short_dir.iterdir()) == [plain]


def test_with_too_few_files_it_says_how_many(short_dir: Path, root: Path) -> None:
    """Libzmq would abort the process (134)."""
    flags = f"--socket={short_dir}/e.sock --worker=ipc://{short_dir}/w --metrics=off"
    for files, flag in ((16, ""), (32, ""), (16, "--check-config")):
        shell = f"ulimit -n {files}; exec {sys.executable} -m proxyd {flags} {flag}"
        command = ["/bin/sh", "-c", shell]
        ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert ended.returncode == 1, ended.stderr
        assert f"may open {files} files" in ended.stderr
        assert "ulimit -n" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert list(short_dir.iterdir()) == []


WITH_DEFAULT: Final = """
import sys
import hostflag.defaults
hostflag.defaults.ENGINE_SOCKET = sys.argv.pop(1)
from proxyd.__main__ import main
sys.exit(main())
"""


def test_with_no_socket_named_it_makes_the_directory_itself(short_dir: Path, root: Path) -> None:
    path = short_dir / "run" / "e.sock"
    command = [sys.executable, "-c", WITH_DEFAULT, str(path), "--metrics=off", f"--worker=ipc://{short_dir}/w"]
    with subprocess.Popen(command, cwd=root, umask=0o077) as daemon:
        until(path.is_socket, "the daemon's socket")
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755
        with Engine(path) as engine:
            engine.ready()
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0
    assert list(path.parent.iterdir()) == []


def test_version(root: Path) -> None:
    ended = run(root, "--version")
    assert (ended.returncode, ended.stdout) == (0, f"dsv41-proxyd {VERSION}\n")


def test_a_log_that_nobody_reads_any_more_does_no_harm(short_dir: Path, root: Path) -> None:
    path = short_dir / "e.sock"
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "proxyd", f"--socket={path}", f"--worker=ipc://{short_dir}/w", "--metrics=off"],
        cwd=root,
        stderr=write,
    ) as daemon:
        os.close(write)
        os.read(read, 4096)
        os.close(read)
        for _ in range(3):
            with Engine(path) as engine:
                engine.ready()
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0
    assert list(short_dir.iterdir()) == []


def test_it_starts_without_standard_descriptors(short_dir: Path, root: Path) -> None:
    path = short_dir / "e.sock"
    flags = f"--socket={path} --worker=ipc://{short_dir}/w --metrics=off"
    shell = f"exec {sys.executable} -m proxyd {flags} 0<&- 1>&- 2>&-"
    with subprocess.Popen(["/bin/sh", "-c", shell], cwd=root) as daemon:
        until(path.is_socket, "the daemon's socket")
        with Engine(path) as engine:
            engine.ready()
        links = {number: Path(f"/proc/{daemon.pid}/fd/{number}").readlink() for number in (0, 1, 2)}
        assert set(links.values()) == {Path("/dev/null")}
        daemon.terminate()
        assert daemon.wait(PATIENCE_S) == 0


def test_out_of_descriptors_it_refuses_and_recovers(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, Engine(daemon.path) as running:
        running.ready("running")
        before = daemon.resources()
        limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        held = max(int(fd.name) for fd in Path(f"/proc/{daemon.pid}/fd").iterdir()) + 1
        for room in range(12):
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (held + room, limits[1]))
            # Whatever the engine gets to hear, it is an answer, and the daemon lives.
            with Engine(daemon.path) as engine, contextlib.suppress(ChannelClosed):
                engine.channel.send(hello(engine=m.EngineIdentity(name=f"engine {room}")))
                engine.channel.send(m.Create())
                with contextlib.suppress(ChannelTimeout):
                    engine.channel.receive(1.0).close_fds()
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
        assert running.round(1) is Verdict.DISCONNECTED
        with Engine(daemon.path) as engine:
            engine.ready("again")
            assert engine.round(1) is Verdict.DISCONNECTED
        daemon.back_to(before)
