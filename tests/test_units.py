# SPDX-License-Identifier: Apache-2.0
"""The files in systemd/: systemd has nothing to say about them, and they say what the code says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from pathlib import Path
from typing import Final

import pytest

from hostflag.defaults import ENGINE_SOCKET
from proxyd.config.settings import TABLE
from proxyd.operator.ctl import SOCKET_VARIABLE
from proxyd.program import EXIT_CONFIG, EXIT_USAGE, PAUSE_S
from proxyd.service import activation
from proxyd.service.server import SHUTDOWN_LIMIT_S


UNITS: Final = Path(__file__).resolve().parent.parent / "systemd"
OPERATIONS: Final = UNITS.parent / "docs" / "OPERATIONS.md"
SERVICE: Final = UNITS / "dsv41-proxyd.service"
SOCKET: Final = UNITS / "dsv41-proxyd.socket"
INSTALLED: Final = "/opt/dsv41-proxyd/bin/"
MOST_EXPOSED: Final = 20  # in tenths; without a sandbox it is over 90
PATIENCE_S: Final = 60.0


def systemd(name: str) -> str:
    """Return the path of one of systemd's programs; skip the test where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (package systemd)")
    return found


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def values(unit: Path, key: str) -> list[str]:
    lines = (line.partition("=") for line in unit.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [value for name, _, value in lines if name == key]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A copy of the units whose programs are there: systemd looks for them."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("dsv41-proxyd", "dsv41-proxyctl"):
        (programs / name).symlink_to(sys.executable)
    for unit in (SERVICE, SOCKET):
        text = unit.read_text(encoding="utf-8").replace(INSTALLED, f"{programs}/")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_service_has_no_directory_that_would_stay() -> None:
    """The daemon writes nowhere but under /run, and docs/OPERATIONS.md says that nothing is left."""
    kinds = ("Runtime", "State", "Cache", "Logs", "Configuration")
    assert [kind for kind in kinds if values(SERVICE, f"{kind}Directory")] == []


def test_systemd_has_nothing_to_say(installed: Path) -> None:
    command = [
        systemd("systemd-analyze"),
        "verify",
        "--man=no",
        *(f"{installed}/{unit.name}" for unit in (SERVICE, SOCKET)),
    ]
    result = run(*command)
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_systemd_would_have_something_to_say(installed: Path) -> None:
    """The check above can fail: a key that does not exist is seen."""
    unit = installed / SERVICE.name
    unit.write_text(unit.read_text(encoding="utf-8").replace("WatchdogSec=", "WatchdogSecs="), encoding="utf-8")
    result = run(systemd("systemd-analyze"), "verify", "--man=no", str(unit), f"{installed}/{SOCKET.name}")
    assert "WatchdogSecs" in result.stderr


def test_the_sandbox_is_tight(installed: Path) -> None:
    command = [systemd("systemd-analyze"), "security", "--no-pager", "--offline=yes", f"--threshold={MOST_EXPOSED}"]
    result = run(*command, f"{installed}/{SERVICE.name}")
    assert result.returncode == 0, result.stdout[-300:]
    unit = installed / SERVICE.name
    loose = [
        line for line in unit.read_text(encoding="utf-8").splitlines() if not line.startswith(("System", "Protect"))
    ]
    unit.write_text("\n".join(loose), encoding="utf-8")
    assert run(*command, str(unit)).returncode != 0, "the threshold is one that can be missed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_users_and_directories_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for name, directory in (("sysusers", "sysusers.d"), ("tmpfiles", "tmpfiles.d")):
        target = tmp_path / "usr" / "lib" / directory
        target.mkdir(parents=True)
        shutil.copy(UNITS / f"{name}.conf", target / "dsv41-proxyd.conf")
    result = run(systemd("systemd-sysusers"), f"--root={tmp_path}", "dsv41-proxyd.conf")
    assert result.returncode == 0, result.stderr
    assert "dsv41-proxyd" in (tmp_path / "etc" / "passwd").read_text(encoding="utf-8")
    groups = (tmp_path / "etc" / "group").read_text(encoding="utf-8")
    assert any(line.startswith("dsv41-engine:") and line.endswith(":dsv41-proxyd") for line in groups.splitlines())
    result = run(systemd("systemd-tmpfiles"), "--create", f"--root={tmp_path}", "dsv41-proxyd.conf")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / ENGINE_SOCKET.lstrip("/")).parent.is_dir()


def test_the_units_say_what_the_code_says() -> None:
    assert values(SOCKET, "ListenSequentialPacket") == [ENGINE_SOCKET]
    assert values(SOCKET, "FileDescriptorName") == [activation.ENGINE]
    assert values(SERVICE, "RestartPreventExitStatus") == [f"{EXIT_USAGE} {EXIT_CONFIG}"]
    assert float(values(SERVICE, "TimeoutStopSec")[0]) > SHUTDOWN_LIMIT_S
    assert values(SERVICE, "Requires") == [SOCKET.name]
    assert values(SERVICE, "User") == values(SOCKET, "SocketUser") == ["dsv41-proxyd"]
    assert f"d {Path(ENGINE_SOCKET).parent} " in (UNITS / "tmpfiles.conf").read_text(encoding="utf-8")


def test_a_start_that_may_go_well_later_is_tried_for_ever() -> None:
    """A start that failed for what may pass takes so long that so many of them are never within the interval."""
    interval_s, burst = (float(values(SERVICE, f"StartLimit{key}")[0]) for key in ("IntervalSec", "Burst"))
    assert PAUSE_S * burst > interval_s
    assert float(values(SERVICE, "TimeoutStartSec")[0]) > PAUSE_S + 10


def test_a_reload_finds_the_socket_that_is_set_for_the_service() -> None:
    """By no path of its own: ListenSequentialPacket= may be another one."""
    [command] = values(SERVICE, "ExecReload")
    assert command == f"{INSTALLED}dsv41-proxyctl reload"
    [file] = values(SERVICE, "EnvironmentFile")
    assert f"`{file.removeprefix('-')}` as\n  `{SOCKET_VARIABLE}=PATH`" in OPERATIONS.read_text(encoding="utf-8")
    assert SOCKET_VARIABLE in {setting.variable for setting in TABLE}


def test_a_wrong_configuration_is_a_failure() -> None:
    """With SuccessExitStatus=78 the unit would be inactive, and the next engine to connect would start it again and again."""
    assert values(SERVICE, "SuccessExitStatus") == []


def test_what_libzmq_needs_is_allowed_again() -> None:
    """Its threads abort the process where they may not set their scheduling; the last filter line has to give that back."""
    assert values(SERVICE, "SystemCallFilter")[-2:] == [
        "~@privileged @resources",
        "sched_setscheduler sched_setaffinity",
    ]


def test_what_would_break_engines_is_not_used() -> None:
    """Users would look like nobody, the socket's directory would go with the service, its user would have no name."""
    assert [values(SERVICE, key) for key in ("PrivateUsers", "RuntimeDirectory", "DynamicUser")] == [[], [], []]
