# SPDX-License-Identifier: Apache-2.0
"""dsv41-proxyctl whose output goes nowhere, or to what lacks letters; a path that is no socket; where it looks for one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from proxyd_harness import PATIENCE_S, Daemon


OK, UNREACHABLE, NOT_HEALTHY, UNWRITTEN = 0, 3, 4, 5
ROOT: Final = Path(__file__).resolve().parent.parent
REASON: Final = "für ein 🙂"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("d")) as running:
        yield running


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m proxyd.operator {line}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("where", "reason"), [(">/dev/full", "No space left on device"), (">&-", "it is closed"), ("</dev/null 1<&0", "")]
)
def test_output_that_cannot_be_written_is_said(daemon: Daemon, where: str, reason: str) -> None:
    ended = shell(f"--socket={daemon.path} status {where}")
    assert ended.returncode == UNWRITTEN
    assert ended.stderr.startswith(f"dsv41-proxyctl: done, but its output cannot be written: {reason}")
    assert len(ended.stderr.splitlines()) == 1


def test_a_complaint_that_cannot_be_written_changes_no_status(short_dir: Path) -> None:
    for where in ("2>/dev/full", "2>&-"):
        assert shell(f"--socket={short_dir}/none status {where}").returncode == UNREACHABLE


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_letters_that_the_output_lacks_are_escaped(daemon: Daemon, encoding: str) -> None:
    quiet = {"PYTHONIOENCODING": encoding} if encoding != "utf-8" else {"PYTHONUTF8": "1"}
    assert shell(f"--socket={daemon.path} drain --reason='{REASON}'").returncode == OK
    try:
        status = shell(f"--socket={daemon.path} status", **quiet)
        assert (status.returncode, status.stderr) == (NOT_HEALTHY, "")
        shown = REASON if encoding == "utf-8" else r"f\u00fcr ein \ud83d\ude42"
        assert f"draining: {shown}" in status.stdout
        machine = shell(f"--socket={daemon.path} status --json", **quiet)
        assert f"draining: {REASON}" in str(json.loads(machine.stdout)["reasons"])
    finally:
        assert shell(f"--socket={daemon.path} resume").returncode == OK


@pytest.mark.parametrize("path", ["/", "{dir}", "{dir}/file"])
def test_what_is_no_socket_is_said_to_be_none(short_dir: Path, path: str) -> None:
    (short_dir / "file").touch()
    ended = shell(f"--socket={path.format(dir=short_dir)} status")
    assert ended.returncode == UNREACHABLE
    assert "it is no socket" in ended.stderr


def test_the_daemons_own_variable_names_the_socket(daemon: Daemon, short_dir: Path) -> None:
    """So that the unit's ExecReload= follows what is set for the service."""
    variable = {"DSV41_PROXYD_ENGINE_SOCKET": str(daemon.path)}
    assert shell("reload", **variable).stdout == "nothing changed\n"
    assert shell(f"--socket={short_dir}/none reload", **variable).returncode == UNREACHABLE
