# SPDX-License-Identifier: Apache-2.0
"""A worker whose log, or audit, cannot be written goes on, and says later what is missing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import subprocess
import sys
import time

from collections.abc import Iterator
from pathlib import Path

import pytest

from test_refworker_process import events
from worker_peer import PATIENCE_MS, ROOT, Ask, Worker, connected, environment, running_worker

from hostflag.control import Close
from hostflag.stderr import NOBODY_READS
from hostflag.wire import Status, encode_control


@contextlib.contextmanager
def redirected(directory: Path, redirection: str, *flags: str) -> Iterator[Worker]:
    """Run a worker whose standard descriptors are as a shell was told."""
    where = directory / "endpoint"
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "refworker", *flags]
    process = subprocess.Popen(
        [*command, "--bind", "tcp://127.0.0.1:0", "--endpoint-file", str(where)], cwd=ROOT, env=environment()
    )
    try:
        until = time.monotonic() + PATIENCE_MS / 1000
        while not where.exists():
            assert process.poll() is None, f"it ended with {process.returncode}"
            assert time.monotonic() < until, "the worker does not get ready"
            time.sleep(0.01)
        yield Worker(process, where.read_text(encoding="utf-8").strip(), directory / "log")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "0<&- 1>&- 2>&-", "2>gone"])
def test_a_log_that_nobody_takes_costs_nothing_else(tmp_path: Path, redirection: str) -> None:
    if redirection == "2>gone":  # a reader that went away
        redirection = f"2>{tmp_path}/gone"
        subprocess.run(["mkfifo", f"{tmp_path}/gone"], check=True)
        reader = subprocess.Popen(["sh", "-c", f": <{tmp_path}/gone"])
    else:
        reader = None
    with redirected(tmp_path, redirection) as worker, connected(worker.endpoint, 1) as (peer,):
        if reader is not None:
            reader.wait()
        for _ in range(3):
            peer.opened()  # each says a line
            assert peer.draft(Ask(1, anchor=1)).status is Status.OK
        assert worker.stop() == 0


def test_a_log_that_nobody_reads_costs_nothing_else(tmp_path: Path) -> None:
    """Not even time; and once it is read, it says what is missing."""
    os.mkfifo(tmp_path / "unread")
    reader = os.open(tmp_path / "unread", os.O_RDONLY | os.O_NONBLOCK)
    try:
        size = fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        with redirected(tmp_path, f"2>{tmp_path}/unread") as worker, connected(worker.endpoint, 1) as (peer,):
            for _ in range(size // 64):  # each says a line of more than that
                peer.opened()
            assert peer.draft(Ask(1, anchor=1)).status is Status.OK
            read = os.read(reader, 2 * size)
            until = time.monotonic() + PATIENCE_MS / 1000
            while b"log lines lost" not in read and time.monotonic() < until:
                peer.opened()
                with contextlib.suppress(BlockingIOError):
                    read += os.read(reader, size)
            told = next(line for line in read.decode().splitlines() if "log lines lost" in line)
            assert events(told)[0]["reason"] == NOBODY_READS
            assert worker.stop() == 0
    finally:
        os.close(reader)


def limit(worker: Worker, size: int) -> None:
    """Let no file of the worker grow beyond so many bytes: that is a disk that is full."""
    resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_disk_that_fills_while_it_serves_costs_lines_which_it_says(tmp_path: Path) -> None:
    with running_worker(tmp_path) as worker, connected(worker.endpoint, 1) as (peer,):
        limit(worker, worker.errors.stat().st_size)
        for _ in range(3):
            peer.opened()
            peer.socket.send(encode_control(1, Close(reason="done")))
        assert peer.draft(Ask(1, anchor=1)).status is Status.UNKNOWN_SESSION
        limit(worker, resource.RLIM_INFINITY)
        peer.opened()
        until = time.monotonic() + PATIENCE_MS / 1000
        while "log lines lost" not in worker.log() and time.monotonic() < until:
            time.sleep(0.05)
        (said,) = [event for event in events(worker.log()) if event["event"] == "log lines lost"]
        assert said["lines"] == 7  # three opened, three closed, one refused
        assert said["reason"] == "File too large"
        assert worker.stop() == 0


def test_an_audit_that_cannot_be_written_costs_no_round(tmp_path: Path) -> None:
    with (
        running_worker(tmp_path, "--audit", str(tmp_path / "audit")) as worker,
        connected(worker.endpoint, 1) as (peer,),
    ):
        peer.opened()
        limit(worker, worker.errors.stat().st_size)
        until = time.monotonic() + 2.5  # two flushes, and what is written meanwhile
        while time.monotonic() < until:
            assert peer.draft(*(Ask(slot, 1, range(4), anchor=1) for slot in range(4))).status is Status.OK
        limit(worker, 1 << 20)
        assert worker.stop() == 0
