# SPDX-License-Identifier: Apache-2.0
"""``dsv41-proxyctl qualify``, on the stand-in for libcuda: a process of its own, so that what is stuck goes with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from pathlib import Path
from typing import Final

import pytest

from cuda_harness import library
from engine_harness import PATIENCE_S
from proxyd_harness import Daemon
from test_selftest import COPIES_A_ROUND

from engine_shim._engine import lib
from engine_shim.environment import LIBCUDA


ROOT: Final = Path(__file__).resolve().parent.parent


def qualified(short_dir: Path, *flags: str, **variables: str) -> tuple[int, str, Path]:
    report = short_dir / "report.json"
    with Daemon(short_dir) as daemon:
        command = [
            sys.executable,
            "-m",
            "proxyd.operator.ctl",
            f"--socket={daemon.path}",
            "qualify",
            "--rounds=20",
            f"--json={report}",
        ]
        ended = subprocess.run(
            [*command, *flags],
            cwd=ROOT,
            env={**os.environ, LIBCUDA: str(library()), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    return ended.returncode, ended.stdout + ended.stderr, report


def test_qualify_prints_and_saves_what_it_found(short_dir: Path) -> None:
    status, text, report = qualified(short_dir)
    assert status == 0, text
    assert "rounds may be parked on this device" in text
    assert "round p50" in text
    saved = json.loads(report.read_text())
    assert saved["passed"]
    assert saved["latencies"]["3 requests"]["rounds"] == 20
    assert {"kernel", "python", "machine"} <= set(saved["image"])


def test_a_report_that_cannot_be_saved_is_printed_all_the_same(short_dir: Path) -> None:
    status, text, _ = qualified(short_dir, f"--json={short_dir}/nowhere/report.json")
    assert status == 0, text
    assert "rounds may be parked on this device" in text
    assert "nowhere/report.json: No such file or directory" in text


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"FAKECUDA_WITHOUT": str(lib.HFC_HOST_REGISTER)}, "HOST_REGISTER_SUPPORTED is 0"),
        ({"FAKECUDA_WITHOUT": str(lib.HFC_STREAM_MEM_OPS)}, "CAN_USE_64_BIT_STREAM_MEM_OPS is 0"),
        ({"FAKECUDA_CORRUPT": str(6 * COPIES_A_ROUND)}, "a copy went wrong"),
        ({"FAKECUDA_STICK": "1"}, "the stream does not move"),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "every other stream of the process stands still"),
        (
            {"CUDA_DEVICE_MAX_CONNECTIONS": "3"},
            "other streams of the process stand still; unset it, or set it to 4 or more",
        ),
        (
            {"CUDA_DEVICE_MAX_CONNECTIONS": "4", "FAKECUDA_QUEUES": "4"},
            "4 of 8 other streams stood still while one was parked, 3 times out of 3 (CUDA_DEVICE_MAX_CONNECTIONS is 4): unset it",
        ),
    ],
)
def test_qualify_says_why_not(short_dir: Path, variables: dict[str, str], why: str) -> None:
    status, text, report = qualified(short_dir, **variables)
    assert status == 1, text
    saved = json.loads(report.read_text())
    assert why in saved["reason"]
    assert saved["stuck"] == ("FAKECUDA_STICK" in variables)
    assert f"rounds must be synchronous: {saved['reason']}" in text


def test_qualify_without_a_driver_says_so(short_dir: Path) -> None:
    status, text, report = qualified(short_dir, **{LIBCUDA: "no-such-library.so"})
    assert (status, report.exists()) == (3, False)
    assert "the CUDA driver cannot be opened" in text


def direct(*flags: str) -> subprocess.Popen[str]:
    """Start what ``dsv41-proxyctl qualify`` starts."""
    return subprocess.Popen(
        [sys.executable, "-m", "engine_shim.qualify", *flags],
        cwd=ROOT, env={**os.environ, LIBCUDA: str(library())}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_each_has_a_name_of_its_own(short_dir: Path) -> None:
    """Two engines of one name and rank would end each other's session at the worker."""
    with Daemon(short_dir) as daemon:
        both = [direct(f"--socket={daemon.path}", "--rounds=20") for _ in range(2)]
        for one in both:
            said = one.communicate(timeout=PATIENCE_S)
            assert one.returncode == 0, said
        engines = {line["engine"].split()[0] for line in daemon.said("session ready")}
    assert engines == {f"qualify-{one.pid}" for one in both}


@pytest.mark.parametrize("rounds", ["0", "-1", "1000001", "some"])
def test_rounds_that_cannot_be_made_are_wrong_arguments(rounds: str) -> None:
    one = direct(f"--rounds={rounds}")
    _, said = one.communicate(timeout=PATIENCE_S)
    assert one.returncode == 2
    assert f"{rounds!r} is not a number of rounds from 1 to 1000000" in said
    assert "_rounds" not in said


def test_proxyctl_says_so_itself() -> None:
    command = [sys.executable, "-m", "proxyd.operator.ctl", "qualify", "--rounds=0"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 2
    assert "usage: dsv41-proxyctl qualify" in ended.stderr
    assert "'0' is not a number of rounds from 1 to 1000000" in ended.stderr
