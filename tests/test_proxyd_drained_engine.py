# SPDX-License-Identifier: Apache-2.0
"""An engine's shim under load, and an operator: a drain costs it nothing, its recorder can be dumped by others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from pathlib import Path
from typing import Final

import pytest

from proxyd_harness import PATIENCE_S, Daemon, until
from shim_harness import Driver, shim_with
from test_engine_real import worker

from engine_shim import Mode
from hostflag import messages as m
from hostflag.verdicts import Skip, Verdict


ROOT: Final = Path(__file__).resolve().parent.parent


def ctl(daemon: Daemon, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "proxyd.operator.ctl", f"--socket={daemon.path}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def under_load(driver: Driver, command: list[str]) -> list[Verdict | None]:
    """Step without a pause while a command runs; return the verdicts, None where a step made no round."""
    verdicts = []
    with subprocess.Popen(command, cwd=ROOT) as process:
        while process.poll() is None:
            verdicts.append(driver.step()[1])
    assert process.returncode == 0
    return verdicts


@pytest.mark.parametrize("mode", list(Mode))
def test_a_drain_under_load_costs_nothing(short_dir: Path, mode: Mode) -> None:
    """Rounds in flight finish, steps are target-only meanwhile, drafts come again in the same session; no loss is counted."""
    with (
        worker(short_dir) as endpoint,
        Daemon(short_dir, worker=endpoint) as daemon,
        shim_with(daemon.path, mode=mode) as driver,
    ):
        first = driver.session()
        command = [sys.executable, "-m", "proxyd.operator.ctl", f"--socket={daemon.path}"]
        driver.ok()
        before = driver.shim.status().rounds
        for _ in range(2):
            verdicts = under_load(driver, [*command, "drain"])
            assert set(verdicts) <= {Verdict.OK, Verdict.DRAINING, None}
            until(lambda: driver.step()[0].skip is Skip.DRAINING, "steps are target-only")
            under_load(driver, [*command, "resume"])
            driver.ok()
        status = driver.shim.status()
        assert (status.session, status.sessions, status.losses) == (first, 1, {})
        assert status.skipped["DRAINING"] > 0
        ended = {name for name, count in status.rounds.items() if count > before.get(name, 0)}
        assert ended <= {"OK", "DRAINING"}


def test_a_drained_daemon_that_is_killed_costs_no_budget(short_dir: Path) -> None:
    with worker(short_dir) as endpoint, shim_with(short_dir / "e.sock", respawns=1) as driver:
        with Daemon(short_dir, worker=endpoint) as daemon:
            first = driver.session()
            driver.ok()
            ctl(daemon, "drain", "--reason=a new version")
            until(lambda: driver.step()[0].skip is Skip.DRAINING, "it drains")
            daemon.process.kill()
            driver.lost()
        with Daemon(short_dir, worker=endpoint):
            driver.session(other_than=first)
            driver.ok()
            status = driver.shim.status()
            assert (status.losses, status.budget_left) == ({"DRAINED": 1}, 1)


def test_a_dump_of_what_the_engine_recorded(short_dir: Path) -> None:
    """By the daemon; by whoever may look into it, where it is stopped."""
    with (
        worker(short_dir) as endpoint,
        Daemon(short_dir, worker=endpoint) as daemon,
        shim_with(daemon.path) as driver,
    ):
        session = driver.session()
        driver.ok()
        for _ in range(5):
            driver.step()
        driver.step()  # the rounds before it are booked by then
        text = ctl(daemon, "dump", "--rounds=3")
        assert text.startswith(f"session {session:016x}, shim rank 0: 3 rounds, times in us\n")
        assert len(text.splitlines()) == 5
        (dump,) = json.loads(ctl(daemon, "dump", "--json"))
        assert set(dump["records"][0]) == set(m.RoundRecord.__struct_fields__)
        last = dump["records"][-1]
        assert (last["verdict"], last["n_requests"]) == ("ok", 1)
        times = [last[f"{name}_ns"] for name in ("seen", "send", "sent", "replied", "decided")]
        assert times == sorted(times)
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            silent = json.loads(ctl(daemon, "dump", "--json"))
            assert silent["type"] == "SILENT"
            assert silent["regions"][0]["records"][: len(dump["records"])] == dump["records"]
            assert "its loop STANDS STILL" in ctl(daemon, "dump")
        finally:
            daemon.process.send_signal(signal.SIGCONT)
