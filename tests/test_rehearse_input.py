# SPDX-License-Identifier: Apache-2.0
"""What is asked for badly is refused in one line, before anything is started, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys

from pathlib import Path

import pytest

from dsv41_rehearse.options import parse, scenario
from dsv41_rehearse.scenario import Scenario, ScenarioError
from dsv41_rehearse.text import MIN_BYTES, Text, TextError, load


def rehearse(*arguments: str, cwd: Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dsv41_rehearse", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TMPDIR": str(cwd), **(environment or {})},
    )


def refused(tmp_path: Path, *arguments: str, says: str, status: int = 2) -> None:
    """The command ends with this status and one line, no traceback; its temporary directory stays empty."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = rehearse(*arguments, cwd=scratch)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert says in last
    assert list(scratch.iterdir()) == []


@pytest.fixture
def bad_texts(tmp_path: Path) -> dict[str, Path]:
    texts = {name: tmp_path / name for name in ("missing", "empty", "short", "binary", "directory")}
    texts["empty"].write_bytes(b"")
    texts["short"].write_bytes(b"a" * (MIN_BYTES - 1))
    texts["binary"].write_bytes(b"fine so far \xff\xfe" * 20)
    texts["directory"].mkdir()
    return texts


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing", "No such file"),
        ("empty", "has 0 bytes"),
        ("short", "has 63 bytes"),
        ("binary", "not UTF-8 text (byte 12)"),
        ("directory", "Is a directory"),
    ],
)
def test_bad_texts(bad_texts: dict[str, Path], name: str, says: str) -> None:
    with pytest.raises(TextError, match=str(bad_texts[name])) as caught:
        load(bad_texts[name])
    assert says in str(caught.value)


def test_a_bad_text_on_the_command_line(tmp_path: Path, bad_texts: dict[str, Path]) -> None:
    refused(tmp_path, "demo", "--text", str(bad_texts["binary"]), says="not UTF-8 text")


@pytest.mark.parametrize(
    "arguments",
    [
        "--requests 0", "--concurrency 0", "--concurrency 257", "--length 3", "--prompt 0", "--prefill-rows 0",
        "--prefill-rows 100000", "--rounds 0", "--rounds -5", "--arrival-steps -1", "--preempt-every -1", "--seed -1",
        "--k 0", "--k 65", "--rows-bytes 0", "--rows-bytes 7", "--rows-bytes 99999999999", "--vocab 255", "--window 0",
        "--slots 6", "--slots 3", "--slots 128", "--ring-bytes 1", "--ring-bytes -1", "--ring-bytes 99999999999999",
        "--gpu-ms nan", "--gpu-ms -1", "--gpu-ms inf", "--cpu-ms 1e9", "--deadline-ms 0", "--deadline-ms nan",
        "--deadline-ms 1e9", "--start-round -1", "--start-round 4294967296",
    ],
)  # fmt: skip
def test_silly_numbers(arguments: str) -> None:
    with pytest.raises((ScenarioError, SystemExit)) as caught:
        scenario(parse(["demo", *arguments.split()]))
    if isinstance(caught.value, SystemExit):
        assert caught.value.code == 2
    else:
        assert str(caught.value)


@pytest.mark.parametrize("worker_ms", ["nan", "-1", "1e9", "soon"])
def test_silly_worker_times(worker_ms: str) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["demo", "--worker-ms", worker_ms])
    assert caught.value.code == 2


def test_a_silly_number_on_the_command_line(tmp_path: Path) -> None:
    refused(tmp_path, "demo", "--slots", "6", says="power of two")


@pytest.mark.parametrize("command", ["", "dmeo", "run", "compare", "demo --keeep", "demo extra", "bench --blocks x"])
def test_bad_usage_ends_with_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(command.split())
    assert caught.value.code == 2
    assert "usage: dsv41-rehearse" in capsys.readouterr().err


def test_nobody_listens(tmp_path: Path) -> None:
    refused(tmp_path, "run", "--socket", str(tmp_path / "nobody.sock"), says="nobody.sock", status=1)


def test_a_file_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no socket")
    refused(tmp_path, "run", "--socket", str(tmp_path / "file"), says="file", status=1)


def test_a_socket_path_that_is_too_long(tmp_path: Path) -> None:
    refused(tmp_path, "run", "--socket", "/tmp/" + "x" * 200, says="socket", status=1)


def test_a_temporary_directory_that_is_too_deep(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    refused(deep, "demo", says="set TMPDIR to a shorter path", status=1)


def test_reports_that_cannot_be_written(tmp_path: Path) -> None:
    for number, (path, says) in enumerate(
        ((tmp_path, "is a directory"), (tmp_path / "no" / "where.json", "no directory"))
    ):
        base = tmp_path / str(number)
        base.mkdir()
        refused(base, "demo", "--json", str(path), says=says)


def test_an_audit_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path, "demo", "--audit", str(tmp_path / "file" / "audit"), says="cannot write the audit")


def test_a_drafter_that_does_not_exist(tmp_path: Path) -> None:
    refused(tmp_path, "demo", "--drafter", "nonsense:Nothing", says="nonsense", status=1)


def test_defaults_are_within_bounds() -> None:
    assert Scenario(text=load()).geometry().row_bytes == 30_720
    Scenario(text=Text("short", b"x" * MIN_BYTES))
