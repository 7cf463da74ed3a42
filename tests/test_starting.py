# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while our programs are still being imported, and output that nobody reads: quiet, with the usual statuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from pathlib import Path

import pytest

from rehearse_support import QUICK, wait_until


PROGRAMS = {
    "dsv41-rehearse": ["dsv41_rehearse", "demo", "--requests", "1"],
    "dsv41-proxyd": ["proxyd", "--metrics", "off", "--socket"],
    "dsv41-refworker": ["refworker", "--bind", "tcp://127.0.0.1:*"],
    "dsv41-proxyctl": ["proxyd.operator", "status", "--socket"],
}


def imports(pid: int, module: str) -> bool:
    return module in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")


@pytest.mark.parametrize("name", PROGRAMS)
def test_ctrl_c_while_it_is_imported(short_dir: Path, name: str) -> None:
    program = PROGRAMS[name]
    command = [sys.executable, "-m", *program, *([str(short_dir / "e")] if program[-1] == "--socket" else [])]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(short_dir)}
    ) as process:
        # In the middle of it: much of every program comes after this module. A machine that stalls here may be past it all.
        wait_until(lambda: process.poll() is not None or imports(process.pid, "/msgspec/"))
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert b"Traceback" not in said
    assert process.returncode in {130, *({0} if name in {"dsv41-proxyd", "dsv41-refworker"} else ())}, said
    if process.returncode == 130 and name != "dsv41-rehearse":
        assert said == b""


def test_a_reload_while_the_daemon_is_imported_comes_after_it(short_dir: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "proxyd",
        f"--socket={short_dir}/e",
        f"--worker=ipc://{short_dir}/w",
        "--metrics=off",
    ]
    with subprocess.Popen([*command, "--log-format=json"], stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr
        wait_until(lambda: daemon.poll() is not None or imports(daemon.pid, "/msgspec/"))
        daemon.send_signal(signal.SIGHUP)
        assert [json.loads(daemon.stderr.readline())["event"] for _ in range(2)] == ["ready", "reloaded"]
        daemon.terminate()
        assert daemon.wait(60) == 0


def test_a_rehearsal_whose_output_nobody_reads_ends_quietly(short_dir: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "dsv41_rehearse", "demo", "--requests", "1000", *QUICK],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(short_dir)},
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""
    assert list(short_dir.iterdir()) == []
