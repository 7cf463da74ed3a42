# SPDX-License-Identifier: Apache-2.0
"""``--check-config``: it finds what a start would blame on the configuration, and nothing that may pass by itself."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys

from pathlib import Path
from typing import Final

import pytest

from proxyd_harness import PATIENCE_S

from hostflag.keys import write_pair
from proxyd.config.settings import Settings
from proxyd.errors import NotNowError, StartError
from proxyd.service import check
from proxyd.service.socketfile import SocketFile


OTHER: Final = 12_345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away, or be somebody else")


def run(root: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxyd", *flags]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize(
    "text",
    [
        '[worker]\nendpoints = ["tcp://a b:1"]',
        '[worker]\nendpoints = ["tcp://127.0.0.1:1", "tcp://a b:1"]',
        '[worker]\nendpoints = ["ipc://rel"]',
        '[engine]\nsocket = "/"',
        '[engine]\nsocket = "/tmp/"',
        '[engine]\nsocket = "/tmp"',
        '[engine]\nsocket = "/etc/passwd"',
    ],
)
def test_what_a_start_calls_wrong_is_found(short_dir: Path, root: Path, text: str) -> None:
    file = short_dir / "proxyd.toml"
    file.write_text(f"{text}\n", encoding="utf-8")
    rest = [] if "socket" in text else [f"--socket={short_dir}/e.sock"]
    checked, started = (
        run(root, f"--config={file}", "--metrics=off", *rest, *flag) for flag in (["--check-config"], [])
    )
    assert (checked.returncode, checked.stdout, started.returncode) == (78, "", 78)
    assert "Traceback" not in checked.stderr + started.stderr
    assert list(short_dir.iterdir()) == [file]


def test_all_of_it_at_once(short_dir: Path, root: Path) -> None:
    ended = run(root, "--check-config", f"--socket={short_dir}", "--worker=tcp://a b:1")
    assert ended.returncode == 78
    assert ended.stderr.splitlines()[0] == "dsv41-proxyd: cannot start with this configuration:"
    assert [line.partition(":")[0] for line in ended.stderr.splitlines()[1:]] == [
        "cannot connect to a worker at tcp",
        f"{short_dir} is there and is no socket",
    ]


def test_what_may_pass_is_no_fault_of_the_configuration(short_dir: Path, root: Path) -> None:
    served = SocketFile(short_dir / "e.sock")
    served.listening.listen()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        metrics = f"--metrics=127.0.0.1:{taken.getsockname()[1]}"
        for path in (short_dir / "e.sock", short_dir / "none" / "e.sock"):
            ended = run(root, "--check-config", f"--socket={path}", metrics)
            assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", "")
            assert run(root, f"--socket={path}", metrics).returncode == 1
    served.listening.close()
    served.close()


@pytest.mark.parametrize(("number", "passes"), [(errno.EMFILE, True), (errno.ENOMEM, True), (errno.EINVAL, False)])
def test_what_ran_short_may_pass_wherever_it_was_noticed(number: int, passes: bool) -> None:
    fault = StartError("a")
    fault.__cause__ = ValueError("b")
    fault.__cause__.__cause__ = OSError(number, "c")
    assert fault.may_pass is passes
    assert NotNowError("a").may_pass
    assert not StartError("a").may_pass


@pytest.fixture
def keys(short_dir: Path) -> Settings:
    """Settings with a secret key of somebody else's."""
    short_dir.chmod(0o711)
    secret, public = write_pair(short_dir, "k")
    os.chown(secret, OTHER, OTHER)
    return Settings(curve_secret_key_file=secret, curve_server_key_file=public, socket=short_dir / "e.sock")


@as_root
def test_root_hears_how_to_check_a_key_as_its_owner(keys: Settings) -> None:
    [fault] = check.faults_of(keys)
    assert f"belongs to uid {OTHER}" in str(fault)
    assert f"sudo -u '#{OTHER}' dsv41-proxyd --check-config" in str(fault)
    assert not fault.may_pass


@as_root
def test_root_checks_a_key_of_the_units_user_as_that_user(keys: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = keys.curve_secret_key_file
    assert secret
    monkeypatch.chdir(secret.parent)  # what is above it is closed to others
    keys = Settings(
        curve_secret_key_file=Path("k.key"), curve_server_key_file=Path("k.pub"), socket=secret.parent / "e.sock"
    )
    monkeypatch.setattr(
        "proxyd.service.check.pwd.getpwnam", lambda name: FakeUser() if name == check.UNIT_USER else None
    )
    assert check.faults_of(keys) == []
    assert os.geteuid() == 0
    secret.chmod(0o640)
    [fault] = check.faults_of(keys)
    assert "mode 0640" in str(fault)
    (secret.parent / "k.pub").chmod(0o600)  # root could read it; the daemon could not
    secret.chmod(0o600)
    [fault] = check.faults_of(keys)
    assert "Permission denied" in str(fault)
    assert os.geteuid() == 0


class FakeUser:
    pw_uid = OTHER
