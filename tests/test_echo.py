# SPDX-License-Identifier: Apache-2.0
"""Echo sessions: the daemon answers rounds itself, and says nothing about workers by them."""

from __future__ import annotations

import json
import subprocess
import sys

from pathlib import Path
from typing import Final

import pytest

from cuda_harness import cuda
from engine_harness import LARGE, Ask, Device
from proxyd_harness import PATIENCE_S, Daemon
from test_selftest import ME, echoed, shim_on

from engine_shim import ConnectionRefusedByDaemon, SessionOptions, connect


ROOT: Final = Path(__file__).resolve().parent.parent


def test_an_echo_waits_as_long_as_it_was_asked_to(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        session = connect(
            daemon.path, geometry=LARGE, model="test", engine=ME, stream=gpu.stream, deadline_ms=10_000.0,
            options=SessionOptions(echo_us=50_000.0),
        )  # fmt: skip
        batch = session.batch()
        Device(LARGE).fill(batch, [Ask(0, 1)])
        ticket = session.submit(batch)
        gpu.drained()
        session.settle()
        assert ticket.round
        timing = session.record(ticket.round).timing
        assert timing.replied_ns - timing.send_ns >= 50_000_000
        session.close()


def test_an_echo_as_slow_as_a_network_timeout_is_refused(short_dir: Path) -> None:
    with (
        Daemon(short_dir) as daemon,
        cuda() as gpu,
        pytest.raises(ConnectionRefusedByDaemon, match="less than the network timeout"),
    ):
        connect(
            daemon.path, geometry=LARGE, model="test", engine=ME, stream=gpu.stream,
            options=SessionOptions(echo_us=200_000.0),
        )  # fmt: skip


def test_an_echo_session_says_nothing_about_workers(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu, shim_on(gpu, daemon.path) as shim:
        echoed(gpu, shim)
        counted = daemon.scrape()
        assert not any("worker_up{" in name or "breaker_open{" in name for name in counted)
        assert not any(value for name, value in counted.items() if "rounds_total{" in name or "_seconds_count" in name)
        look = subprocess.run(
            [sys.executable, "-m", "proxyd.operator.ctl", "--socket", str(daemon.path), "status", "--json"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        status = json.loads(look.stdout)
        assert not status["healthy"]
        assert [session["endpoint"] for session in status["sessions"]] == ["echo"]
        shim.close(PATIENCE_S)
        daemon.exactly("session over", 3)  # two of the shim's own test
        assert not any(value for name, value in daemon.scrape().items() if "rounds_total{" in name)
