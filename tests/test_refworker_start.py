# SPDX-License-Identifier: Apache-2.0
"""What the worker may take when it starts, what it must leave alone, and how it says that it cannot."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time

from pathlib import Path

import pytest

from test_refworker_process import events, run
from worker_peer import PATIENCE_MS, ROOT, Ask, connected, environment, running_worker

from hostflag.wire import Status


def cannot_start(*flags: str) -> str:
    """The worker does not start, and says in one line why. Returns that."""
    ended = run(*flags)
    assert ended.returncode == 78, ended.stderr
    (said,) = events(ended.stderr)
    assert said["event"] == "cannot start"
    return str(said["reason"])


def test_a_file_at_the_path_of_its_socket_is_left_alone(short_dir: Path) -> None:
    path = short_dir / "precious"
    path.write_text("kept", encoding="utf-8")
    assert "is no socket" in cannot_start("--bind", f"ipc://{path}")
    assert path.read_text(encoding="utf-8") == "kept"
    link = short_dir / "link"
    link.symlink_to(path)
    assert "is no socket" in cannot_start("--bind", f"ipc://{link}")
    assert "is a directory" in cannot_start("--bind", "ipc:///")
    assert link.is_symlink()
    assert sorted(one.name for one in short_dir.iterdir()) == ["link", "precious"]


def test_a_living_worker_keeps_its_socket(short_dir: Path) -> None:
    endpoint = f"ipc://{short_dir}/w"
    with running_worker(short_dir, endpoint=endpoint) as worker, connected(endpoint, 1) as (peer,):
        assert "another worker serves" in cannot_start("--bind", endpoint)
        peer.opened()
        with connected(endpoint, 2) as (later,):
            later.opened()
        # Also a stopped one: it goes on some day.
        os.kill(worker.process.pid, signal.SIGSTOP)
        assert "another worker serves" in cannot_start("--bind", endpoint)
        os.kill(worker.process.pid, signal.SIGCONT)
        assert peer.draft(Ask(1, anchor=1)).status is Status.OK


def test_a_socket_that_answers_is_left_alone_whoever_it_is(short_dir: Path) -> None:
    path = short_dir / "w"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen(1)
        before = path.stat().st_ino
        assert "somebody listens on" in cannot_start("--bind", f"ipc://{path}")
        assert path.stat().st_ino == before


def test_a_socket_that_a_dead_worker_left_is_replaced(short_dir: Path) -> None:
    endpoint = f"ipc://{short_dir}/w"
    with running_worker(short_dir, endpoint=endpoint):
        pass  # ends with SIGKILL
    assert (short_dir / "w").is_socket()
    (short_dir / "endpoint").unlink()
    with running_worker(short_dir, endpoint=endpoint) as worker, connected(endpoint, 1) as (peer,):
        peer.opened()
        assert worker.stop() == 0
    assert sorted(one.name for one in short_dir.iterdir()) == ["worker.log"]


def test_two_that_start_at_once_do_not_take_the_path_from_each_other(short_dir: Path) -> None:
    with (short_dir / "w.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another worker serves" in cannot_start("--bind", f"ipc://{short_dir}/w")


def test_an_abstract_name_needs_no_place(short_dir: Path) -> None:
    endpoint = f"ipc://@{short_dir.name}-{time.monotonic_ns()}"
    with running_worker(short_dir, endpoint=endpoint) as worker, connected(worker.endpoint, 1) as (peer,):
        peer.opened()
        assert worker.stop() == 0


@pytest.mark.parametrize("files", [*range(8, 26, 2)])
def test_too_few_descriptors_are_a_reason(files: int) -> None:
    """Neither a traceback nor libzmq's abort, whichever descriptor is the one too many."""
    flags = [sys.executable, "-m", "refworker", "--bind", "tcp://127.0.0.1:0"]
    ended = subprocess.run(
        ["prlimit", f"--nofile={files}", *flags],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE_MS / 1000,
    )  # fmt: skip
    assert ended.returncode == 78, ended.stderr
    (said,) = events(ended.stderr)
    assert "Too many open files: raise the limit on open files (ulimit -n)" in str(said["reason"])
