# SPDX-License-Identifier: Apache-2.0
"""A daemon whose configuration changes while it runs: what counts at once, what later, and what a bad file changes: nothing."""

from __future__ import annotations

import os
import signal

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxyd_engine import Engine, hello, unharmed
from proxyd_harness import Daemon, until
from proxyd_worker import Rounds, Worker
from test_proxyd_operator import run

from hostflag import messages as m
from hostflag.verdicts import Verdict
from proxyd.config.commandline import parse
from proxyd.config.configuration import Configuration, Reloaded
from proxyd.config.faults import ConfigurationError, Fault
from proxyd.config.settings import Settings


@pytest.fixture
def config(short_dir: Path) -> Path:
    path = short_dir / "proxyd.toml"
    write(path)
    return path


def write(path: Path, *, worker: str = "w", timeout_ms: object = 150.0, level: str = '"debug"', more: str = "") -> None:
    """Replace the file, as an editor does. ``level`` is TOML, ``more`` follows it in [log]."""
    text = f'[worker]\nendpoints = ["ipc://{path.parent}/{worker}"]\nnetwork_timeout_ms = {timeout_ms}\n[log]\nlevel = {level}\n'
    new = path.with_suffix(".new")
    new.write_text(text + more, encoding="utf-8")
    new.replace(path)


@pytest.fixture
def daemon(short_dir: Path, config: Path) -> Iterator[Daemon]:
    with Daemon(short_dir, config=config, worker=f"ipc://{short_dir}/w") as running:
        yield running


def instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def reload(daemon: Daemon, event: str = "reloaded") -> dict[str, Any]:
    """Send SIGHUP and return the log line that follows."""
    before = len(daemon.said(event))
    daemon.process.send_signal(signal.SIGHUP)
    return daemon.wait_for(event, before + 1)


def timeout_of(daemon: Daemon) -> float:
    """Return what a new engine is told."""
    with Engine(daemon.path) as engine:
        return greeted(engine).network_timeout_ms


def greeted(engine: Engine) -> m.Welcome:
    welcome = engine.ask(hello())
    assert isinstance(welcome, m.Welcome)
    return welcome


REFUSED = "not reloaded: the configuration of before stays"


def test_new_sessions_have_the_new_timeout_and_running_ones_go_on(daemon: Daemon, config: Path) -> None:
    with Worker(daemon.worker), Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        write(config, timeout_ms=75.5)
        line = reload(daemon)
        assert line["changed"] == ["worker.network_timeout_ms: 150.0 -> 75.5"]
        assert (line["needs_restart"], line["asked_by"]) == ([], "SIGHUP")
        assert timeout_of(daemon) == 75.5
        assert rounds.next() is Verdict.OK


def test_other_endpoints_count_at_once(daemon: Daemon, config: Path, short_dir: Path) -> None:
    with Worker(daemon.worker), Worker(f"ipc://{short_dir}/other") as other, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        write(config, worker="other")
        assert [change.partition(":")[0] for change in reload(daemon)["changed"]] == ["worker.endpoints"]
        until(lambda: rounds.next() is Verdict.OK and other.rounds, "drafts of the other worker")
        assert daemon.wait_for("worker endpoint changed")["reason"] == "a reload"
        assert not daemon.said("session over")


def test_a_switch_by_an_operator_stays_until_the_endpoints_change(
    daemon: Daemon, config: Path, short_dir: Path
) -> None:
    assert run(daemon, "switch-worker", f"ipc://{short_dir}/third").returncode == 0
    write(config, timeout_ms=99.0)
    reload(daemon)
    daemon.exactly("worker endpoint changed", 1)
    write(config, timeout_ms=99.0, worker="fourth")
    reload(daemon)
    assert daemon.wait_for("worker endpoint changed", 2)["endpoint"] == f"ipc://{short_dir}/fourth"


def test_the_log_level_counts_at_once_for_loggers_that_exist(daemon: Daemon, config: Path) -> None:
    def met() -> None:
        with Engine(daemon.path) as engine:
            greeted(engine)

    gone = "engine went away before it was ready"
    met()
    daemon.wait_for(gone)
    write(config, level='"info"')
    reload(daemon)
    met()
    until(lambda: daemon.scrape()["dsv41_proxyd_handshaking"] == 0, "the engine is gone")
    write(config)
    reload(daemon)
    met()
    daemon.wait_for(gone, 2)
    reload(daemon)
    daemon.exactly(gone, 2)


def test_what_a_flag_says_no_file_changes(daemon: Daemon, config: Path) -> None:
    write(config, more='format = "console"\n[engine]\nsocket = "/x"\n[metrics]\naddress = "off"\n[loop]\nspin_us = 1\n')
    line = reload(daemon)
    assert (line["changed"], line["needs_restart"]) == (["loop.spin_us: 50.0 -> 1.0"], [])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: write(path, timeout_ms='"x"', level='"loud"'), "not a number"),
        (lambda path: write(path, timeout_ms=75, more="levle = 1\n"), "did you mean log.level"),
        (lambda path: write(path, worker="w\\u0000"), "control characters"),
        (lambda path: path.write_text("[worker", encoding="utf-8"), "is not TOML"),
        (lambda path: path.write_bytes(bytes(1 << 20)), "larger"),
        (Path.unlink, "there is no such file"),
        (lambda path: instead(path, os.mkfifo), "is a FIFO"),
        (lambda path: instead(path, lambda path: path.symlink_to("/dev/zero")), "is a device"),
    ],
    ids=["values", "key", "endpoint", "truncated", "binary", "gone", "fifo", "endless"],
)
def test_a_bad_file_changes_nothing_and_says_why(
    daemon: Daemon, config: Path, spoil: Callable[[Path], object], words: str
) -> None:
    with unharmed(daemon):
        spoil(config)
        line = reload(daemon, REFUSED)
        assert any(words in fault for fault in line["faults"])
        assert line["level"] == "error"
        answered = run(daemon, "reload")
        assert answered.returncode == 1
        assert words in answered.stderr
        assert words in run(daemon, "status").stdout
        assert timeout_of(daemon) == 150.0
        daemon.exactly(REFUSED, 2)
        config.unlink(missing_ok=True)
        write(config, timeout_ms=75.0)
        answered = run(daemon, "reload")
        assert (answered.returncode, answered.stderr) == (0, "")
        assert "worker.network_timeout_ms: 150.0 -> 75.0" in answered.stdout
        assert words not in run(daemon, "status").stdout
    samples = daemon.scrape()
    assert [samples[f'dsv41_proxyd_reloads_total{{outcome="{outcome}"}}'] for outcome in ("refused", "taken")] == [2, 1]


def test_endpoints_that_cannot_be_connected_to_change_nothing(daemon: Daemon, config: Path) -> None:
    text = '[worker]\nendpoints = ["tcp://no such host:1"]\nnetwork_timeout_ms = 75.0\n'
    config.write_text(text, encoding="utf-8")
    assert "cannot connect" in reload(daemon, REFUSED)["faults"][0]
    assert timeout_of(daemon) == 150.0


def test_many_reloads_cost_nothing_that_stays(daemon: Daemon, config: Path) -> None:
    reload(daemon)
    before = daemon.resources()
    for number in range(30):
        write(config, worker=f"w{number % 2}", timeout_ms=75 + number % 2)
        daemon.process.send_signal(signal.SIGHUP)
    until(lambda: timeout_of(daemon) == 76, "the last one")
    daemon.back_to(before)


class Configured:
    """A configuration without a daemon. ``applied`` are the names of settings that changed, a set a reload."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.applied: list[frozenset[str]] = []
        self.refuse = False
        self.configuration = Configuration(parse([f"--config={path}"]), {})

    def reload(self, text: str) -> Reloaded:
        self.path.write_text(text, encoding="utf-8")
        return self.configuration.reload(self._apply)

    def _apply(self, _settings: Settings, changed: frozenset[str]) -> None:
        self.applied.append(changed)
        if self.refuse:
            raise ConfigurationError([Fault(source="worker.endpoints", reason="cannot be")])


@pytest.fixture
def alone(short_dir: Path) -> Configured:
    (short_dir / "f").touch()
    return Configured(short_dir / "f")


def test_values_that_need_a_restart_are_not_in_force(alone: Configured) -> None:
    for _ in range(2):
        reloaded = alone.reload('[engine]\nsocket = "/x"\n[loop]\nspin_us = 1')
        assert list(map(str, reloaded.restart)) == ['engine.socket: "/run/dsv41-proxyd/engine.sock" -> "/x"']
    assert alone.configuration.settings == Settings(spin_us=1.0)
    assert alone.configuration.origins["socket"] == "default"
    assert alone.configuration.origins["spin_us"] == str(alone.path)
    assert alone.applied == [{"spin_us"}, frozenset()]
    assert "needs a restart" in reloaded.notes[0]
    assert alone.reload("").notes == ()
    assert alone.configuration.settings == Settings()


def test_what_cannot_be_applied_is_not_in_force(alone: Configured) -> None:
    before = alone.configuration.settings
    alone.refuse = True
    reloaded = alone.reload("[loop]\nspin_us = 1")
    assert reloaded.faults == ("worker.endpoints: cannot be",)
    assert alone.configuration.settings is before
    alone.refuse = False
    assert [str(change) for change in alone.reload("[loop]\nspin_us = 1").changed] == ["loop.spin_us: 50.0 -> 1.0"]


def test_a_flag_goes_before_the_file_at_a_reload_too(short_dir: Path) -> None:
    path = short_dir / "f"
    path.touch()
    configuration = Configuration(parse([f"--config={path}", "--spin-us=7"]), {"DSV41_PROXYD_LOOP_NAP_US": "9"})
    path.write_text("[loop]\nspin_us = 1\nnap_us = 1\n", encoding="utf-8")
    assert configuration.reload(lambda *_: None) == Reloaded()
    assert configuration.settings == Settings(spin_us=7.0, nap_us=9.0)
