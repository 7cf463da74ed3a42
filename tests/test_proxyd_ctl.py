# SPDX-License-Identifier: Apache-2.0
"""dsv41-proxyctl against a daemon: drain and resume, reload, dump, a daemon that says nothing; its exit statuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from proxyd_engine import Engine, connect, hello, refused, unharmed
from proxyd_harness import PATIENCE_S, Daemon, until
from proxyd_worker import Rounds, Worker, friendly

from hostflag import messages as m
from hostflag import wire
from hostflag.channel import operator_end
from hostflag.region import Word
from hostflag.verdicts import Phase, Verdict
from hostflag.wire import Kind
from proxyd.operator import ctl, outside


OK, FAILED, USAGE, UNREACHABLE, NOT_HEALTHY = 0, 1, 2, 3, 4
ROOT: Final = Path(__file__).resolve().parent.parent


@pytest.fixture
def daemon(short_dir: Path) -> Iterator[Daemon]:
    with Daemon(short_dir) as running:
        yield running


def run(daemon: Daemon, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proxyd.operator.ctl", f"--socket={daemon.path}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        **options,
    )


def done(daemon: Daemon, *arguments: str) -> str:
    result = run(daemon, *arguments)
    assert (result.returncode, result.stderr) == (OK, "")
    return result.stdout.rstrip("\n")


def test_a_drain_and_its_end(daemon: Daemon) -> None:
    """The session stays; rounds are turned away, engines told, new ones refused with the reason; then all goes on."""
    with Worker(daemon.worker), Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        text = done(daemon, "drain", "--reason=a kernel update")
        assert text == "draining, 1 session, no round in flight; `dsv41-proxyctl resume` ends it"
        assert engine.receive() == m.Draining(reason="a kernel update")
        until(lambda: engine.word(Word.PHASE) == Phase.DRAINING, "the phase word")
        assert rounds.next() is Verdict.DRAINING
        with Engine(daemon.path) as late:
            late.channel.send(hello())
            refused(late, "draining", "a kernel update", "connect again later")
        assert run(daemon, "status").returncode == NOT_HEALTHY
        assert done(daemon, "resume") == "serving again, 1 session"
        assert engine.receive() == m.Resumed()
        until(lambda: engine.word(Word.PHASE) == Phase.RUNNING, "the phase word")
        assert rounds.next() is Verdict.OK
        with Engine(daemon.path) as late:
            late.ready("late")
        assert done(daemon, "resume") == "was not draining"
        assert run(daemon, "status").returncode == OK


def test_a_drain_waits_for_the_round_in_flight(short_dir: Path) -> None:
    seen, release = threading.Event(), threading.Event()

    def slow(worker: Worker, parts: list[bytes], header: wire.Header) -> None:
        if header.kind is Kind.ROUND:
            seen.set()
            release.wait(PATIENCE_S)
        friendly(worker, parts, header)

    with (
        Daemon(short_dir, "--network-timeout-ms=20000") as daemon,
        Worker(daemon.worker, slow),
        Engine(daemon.path) as engine,
    ):
        engine.ready()
        daemon.wait_for("worker up")
        engine.submit(1)
        assert seen.wait(PATIENCE_S)
        with operator_end(connect(daemon.path)) as operator:
            operator.send(m.OperatorHello(protocol=m.PROTOCOL_VERSION))
            assert isinstance(operator.receive(PATIENCE_S).message, m.Done)
            operator.send(m.Drain(reason="r"))
            assert isinstance(engine.receive(), m.Draining)
            assert engine.verdict(1) is Verdict.OPEN
            release.set()
            answer = operator.receive(PATIENCE_S).message
        assert isinstance(answer, m.Done)
        assert "no round in flight" in answer.text
        assert engine.finish(1) is Verdict.OK


def test_a_drain_by_one_who_leaves_goes_on(daemon: Daemon) -> None:
    with Engine(daemon.path) as engine:
        engine.ready()
        with operator_end(connect(daemon.path)) as operator:
            operator.send(m.OperatorHello(protocol=m.PROTOCOL_VERSION))
            assert isinstance(operator.receive(PATIENCE_S).message, m.Done)
            operator.send(m.Drain(reason="r"))
        assert engine.receive() == m.Draining(reason="r")
        assert engine.round(1) is Verdict.DRAINING


@pytest.mark.parametrize("reason", ["", "a\nb", "\x1b[2J"])
def test_a_reason_that_is_none(daemon: Daemon, reason: str) -> None:
    with unharmed(daemon), operator_end(connect(daemon.path)) as operator:
        for request in (m.OperatorHello(protocol=m.PROTOCOL_VERSION), m.Drain(reason=reason)):
            operator.send(request)
            answer = operator.receive(PATIENCE_S).message
        assert isinstance(answer, m.Refused)
        assert answer.code == "reason"
        operator.send(m.StatusRequest())  # a refusal ends no operator's connection
        assert isinstance(operator.receive(PATIENCE_S).message, m.Status)


def test_a_dump_of_no_session(daemon: Daemon) -> None:
    assert done(daemon, "dump") == "no sessions"
    missing = run(daemon, "dump", "--session=00000000000000aa")
    assert missing.returncode == FAILED
    assert "there is no session 00000000000000aa" in missing.stderr


def test_a_reload_by_an_operator(short_dir: Path) -> None:
    file = short_dir / "proxyd.toml"
    file.write_text('[log]\nlevel = "debug"\n')
    with Daemon(short_dir, config=file) as daemon:
        assert done(daemon, "reload") == "nothing changed"
        file.write_text('[log]\nlevel = "info"\nformat = "console"\n')
        text = done(daemon, "reload")
        assert 'log.level: "debug" -> "info"' in text
        file.write_text("[log]\nlevle = 1\n")
        with unharmed(daemon):
            result = run(daemon, "reload")
        assert result.returncode == FAILED
        assert "the configuration of before stays" in result.stderr
        assert "levle" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["drain", "--reason="],
        ["drain", "--reason=" + "x" * 300],
        ["dump", "--rounds=0"],
        ["dump", "--rounds=256"],
        ["dump", "--session=xyz"],
        ["status", "--timeout=0"],
        ["status", "--timeout=nan"],
        ["switch-worker"],
        ["switch-worker", "ipc:///a", "ipc:///a"],
    ],
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        ctl.main(arguments)
    assert left.value.code == USAGE
    assert "usage: dsv41-proxyctl" in capsys.readouterr().err


def test_its_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        ctl.main(["--help"])
    assert left.value.code == OK
    text = capsys.readouterr().out
    assert all(word in text for word in ("exit status:", "examples:", "  4  ", "drain", "resume", "reload", "dump"))


@pytest.mark.parametrize("command", ["status", "drain", "resume", "reload", "dump"])
def test_nobody_there(short_dir: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = short_dir / "e.sock"
    assert ctl.main([f"--socket={path}", command]) == UNREACHABLE
    assert "there is no such socket" in capsys.readouterr().err
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left_behind:
        left_behind.bind(str(path))
    assert ctl.main([f"--socket={path}", command]) == UNREACHABLE
    assert "nobody listens" in capsys.readouterr().err


def test_a_reader_that_has_enough(daemon: Daemon) -> None:
    command = f"{sys.executable} -m proxyd.operator.ctl --socket={daemon.path} status | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (result.returncode, result.stderr) == (NOT_HEALTHY, "")


class Stopped:
    """A daemon that is stopped (SIGSTOP) within a ``with``."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def __enter__(self) -> None:
        self._daemon.process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self._daemon.pid}/stat")
        until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")

    def __exit__(self, *_: object) -> None:
        self._daemon.process.send_signal(signal.SIGCONT)


def test_the_status_of_a_stopped_daemon(daemon: Daemon) -> None:
    """Its regions are read through /proc; it does not even have to answer."""
    with Worker(daemon.worker), Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        t = engine.word(Word.RETIRED)
        with Stopped(daemon):
            engine.submit(t + 1)
            plain = run(daemon, "status", "--timeout=0.5")
            assert plain.returncode == NOT_HEALTHY
            assert "does not answer within 0.5 s" in plain.stdout
            assert f"process  {daemon.pid}" in plain.stdout
            assert "stopped (SIGSTOP" in plain.stdout
            assert "its loop STANDS STILL, 1 in flight" in plain.stdout
            result = run(daemon, "status", "--json", "--timeout=0.5")
            look = json.loads(result.stdout)
            assert (result.returncode, look["type"], look["pid"], look["lacks"]) == (
                NOT_HEALTHY,
                "SILENT",
                daemon.pid,
                None,
            )
            (region,) = look["regions"]
            assert (region["phase"], region["beating"], region["in_flight"]) == ("running", False, 1)
            assert (region["words"]["gathered"], region["words"]["retired"]) == (t + 1, t)
            other = run(daemon, "drain")
            assert other.returncode == UNREACHABLE
            assert "does not answer" in other.stderr
        assert engine.finish(t + 1) is Verdict.OK
        assert run(daemon, "status").returncode == OK


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_which_right_is_lacking(daemon: Daemon) -> None:
    """Somebody who may not look into the process learns who may; nothing fails."""
    with Stopped(daemon):
        program = (
            "import os, sys; from proxyd.operator import outside, ctltext\n"
            f"os.setgroups([]); os.setgid(65534); os.setuid(65534); look = outside.look({daemon.pid})\n"
            "print(ctltext.look_text(look, 'r')); print(look.lacks)"
        )
        result = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert result.returncode == 0, result.stderr
        assert "stopped (SIGSTOP" in result.stdout
        assert (
            f"reading /proc/{daemon.pid}/fd: that takes its own uid 0 or root, and this is uid 65534" in result.stdout
        )


def test_a_process_that_is_gone_or_hidden() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert outside.look(process.pid).state.startswith("gone")
    assert "namespace" in (outside.look(0).lacks or "")


def test_regions_that_are_none(short_dir: Path) -> None:
    """A memfd of that name that holds something else is said to be unreadable, not shown."""
    program = "import os, sys; os.memfd_create('dsv41-region'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        look = outside.look(process.pid)
        process.communicate()
    assert look.regions == ()
    assert "cannot be read" in (look.lacks or "")
