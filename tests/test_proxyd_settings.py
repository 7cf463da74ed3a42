# SPDX-License-Identifier: Apache-2.0
"""The daemon's command line: what it takes, what it refuses, and with which words."""

from __future__ import annotations

import os

from pathlib import Path

import pytest

from proxyd.config.commandline import parse as parse_line
from proxyd.config.kinds import MAX_SOCKET_PATH_BYTES, MetricsAddress
from proxyd.config.settings import TABLE, Settings
from proxyd.config.sources import Sources


def parse(argv: list[str]) -> Settings:
    """Return the settings of a command line alone."""
    return Sources(parse_line([*argv]), {}).settings


def test_defaults_are_those_of_the_documentation() -> None:
    settings = parse([])
    assert settings.socket == Path("/run/dsv41-proxyd/engine.sock")
    assert settings.workers == ("tcp://127.0.0.1:5741",)
    assert settings.metrics == MetricsAddress("127.0.0.1", 9741)
    assert (settings.network_timeout_ms, settings.spin_us, settings.nap_us) == (150, 50, 20)


def test_a_relative_socket_path_becomes_absolute() -> None:
    assert parse(["--socket", "here.sock"]).socket == Path.cwd() / "here.sock"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("off", None),
        ("127.0.0.1:0", MetricsAddress("127.0.0.1", 0)),
        ("localhost:9741", MetricsAddress("127.0.0.1", 9741)),
        ("[::1]:9741", MetricsAddress("::1", 9741)),
    ],
)
def test_metrics_addresses(text: str, address: MetricsAddress | None) -> None:
    assert parse(["--metrics", text]).metrics == address


@pytest.mark.parametrize("text", ["tcp://worker.example:5741", "tcp://[fe80::1]:5741", "ipc:///run/worker.sock"])
def test_worker_endpoints(text: str) -> None:
    assert parse(["--worker", text]).workers == (text,)


@pytest.mark.parametrize("flags", [["--worker=ipc://w"], ["--worker=ipc://w", "--worker=tcp://h:1"]])
def test_a_relative_endpoint_becomes_absolute(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is right in a file, too, as --print-config has it."""
    assert parse(flags).workers[0] == f"ipc://{Path.cwd()}/w"
    monkeypatch.setenv("DSV41_PROXYD_WORKER_ENDPOINTS", "ipc://w,ipc://@abstract")
    assert Sources(parse_line([]), os.environ).settings.workers == (f"ipc://{Path.cwd()}/w", "ipc://@abstract")


def test_several_workers_in_order_of_preference() -> None:
    assert parse(["--worker=ipc:///b", "--worker=ipc:///a"]).workers == ("ipc:///b", "ipc:///a")


@pytest.mark.parametrize(
    ("endpoints", "word"), [(["ipc:///a", "ipc:///a"], "twice"), ([f"ipc:///{n}" for n in range(9)], "1 to 8")]
)
def test_workers_that_cannot_be(endpoints: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse([f"--worker={endpoint}" for endpoint in endpoints])
    assert left.value.code == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "word"),
    [
        ("--socket", "", "path"),
        ("--socket", "/" + "x" * MAX_SOCKET_PATH_BYTES, "longer"),
        ("--worker", "127.0.0.1:5741", "tcp://HOST:PORT"),
        ("--worker", "inproc://x", "tcp://HOST:PORT"),
        ("--worker", "tcp://*:5741", "connect"),
        ("--worker", "tcp://127.0.0.1:0", "connect"),
        ("--worker", "tcp://127.0.0.1:65536", "port"),
        ("--worker", "tcp://127.0.0.1:-1", "port"),
        ("--worker", "tcp://127.0.0.1:٣", "port"),
        ("--worker", "tcp://::1:5741", "brackets"),
        ("--worker", "ipc://", "bytes"),
        ("--worker", "ipc://" + "x" * 200, "bytes"),
        ("--metrics", "9741", "port"),
        ("--metrics", ":9741", "host"),
        ("--metrics", "metrics.example:9741", "address"),
        ("--metrics", "", "port"),
        ("--network-timeout-ms", "nan", "number"),
        ("--network-timeout-ms", "0", "number"),
        ("--network-timeout-ms", "1e9", "number"),
        ("--spin-us", "-1", "number"),
        ("--nap-us", "0", "number"),
        ("--nap-us", "x", "number"),
        ("--nap-us", "10001", "number"),
        ("--breaker-failures", "-1", "whole"),
        ("--breaker-failures", "1.5", "whole"),
        ("--breaker-cool-ms", "4001", "number"),
        ("--log-level", "loud", "choice"),
        ("--log-format", "xml", "choice"),
    ],
)
def test_a_bad_value_says_what_is_wrong(flag: str, value: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse([f"{flag}={value}"])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert f"argument {flag}" in said
    assert word in said


@pytest.mark.parametrize("flag", ["--sock=/tmp/x", "--unknown", "stray"])
def test_unknown_and_shortened_flags_are_refused(flag: str) -> None:
    with pytest.raises(SystemExit) as left:
        parse([flag])
    assert left.value.code == 2


def test_the_help_says_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("(default: none)") == sum(setting.default == () for setting in TABLE) > 0
    assert "(default: )" not in said
