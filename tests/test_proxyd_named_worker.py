# SPDX-License-Identifier: Apache-2.0
"""Workers by host name, as a whole daemon has them: one that does not resolve, one with several addresses, one that moves."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

from pathlib import Path
from typing import Any

import pytest

from named_daemon import ROOT, Zone
from proxyd_engine import Engine
from proxyd_harness import PATIENCE_S, Daemon, free_port, until
from proxyd_worker import Rounds, Worker

from hostflag.verdicts import Verdict
from proxyd.links.names import LIMIT_S
from proxyd.links.workers import ANSWER_S, BACK_S


NO_ANSWER = f"the name hangs is not resolved: no answer within {LIMIT_S:g} s"


def named(directory: Path, zone: Zone, worker: str, *flags: str) -> Daemon:
    return Daemon(directory, *flags, worker=worker, program=zone.program, before=zone.before)


def unhealthy(daemon: Daemon) -> Any:
    url = daemon.said("ready")[0]["metrics"].replace("/metrics", "/healthz")
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S):
            return []
    except urllib.error.HTTPError as answer:
        with answer:
            return json.load(answer)["reasons"]


def test_a_name_that_does_not_resolve_is_fallen_back_from_and_nothing_piles_up(short_dir: Path) -> None:
    zone = Zone(short_dir / "zone", hangs=None)
    spare = f"ipc://{short_dir}/spare"
    # At its end the resolver still has not answered: an end that waited for it would not come.
    started = named(short_dir, zone, "tcp://hangs:5741", f"--worker={spare}")
    with Worker(spare), started as daemon, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        rounds.until(Verdict.OK)
        line = daemon.wait_for("worker name not resolved")
        assert (line["endpoint"], line["reason"]) == ("tcp://hangs:5741", NO_ANSWER)
        before = daemon.resources()
        time.sleep(4 * (ANSWER_S + BACK_S))  # several looks
        daemon.back_to(before)
        assert rounds.next() is Verdict.OK
        assert daemon.scrape()["dsv41_proxyd_worker_moves_total"] == 1


def test_why_there_is_no_worker_is_said_with_and_without_sessions(short_dir: Path) -> None:
    zone = Zone(short_dir / "zone", hangs=None)
    with named(short_dir, zone, "tcp://hangs:5741") as daemon:
        until(
            lambda: unhealthy(daemon) == [f"no link to tcp://hangs:5741: {NO_ANSWER}"], "the reason, without sessions"
        )
        with Engine(daemon.path) as engine:
            rounds = Rounds(engine.ready())
            assert rounds.next() is Verdict.DISCONNECTED
            wanted = f"engine rank 0: no worker (link connecting at tcp://hangs:5741: {NO_ANSWER})"
            until(lambda: unhealthy(daemon) == [wanted], "the reason, of a session")
        daemon.exactly("worker name not resolved", 1)  # however many looks and links have met it


def test_a_name_that_comes_to_be_resolved_is_linked(short_dir: Path) -> None:
    zone = Zone(short_dir / "zone")
    port = free_port()
    started = named(short_dir, zone, f"tcp://late:{port}")
    with Worker(f"tcp://127.0.0.1:{port}"), started as daemon, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        assert rounds.next() is Verdict.DISCONNECTED
        assert "Name or service not known" in daemon.wait_for("worker name not resolved")["reason"]
        zone.set("late", ["127.0.0.1"])
        rounds.until(Verdict.OK)


@pytest.mark.parametrize("at", ["127.0.0.1", "127.0.0.3"])
def test_the_addresses_of_a_name_are_tried_in_turn(short_dir: Path, at: str) -> None:
    zone = Zone(short_dir / "zone", several=["::1", "127.0.0.1", "127.0.0.2", "127.0.0.3"])
    port = free_port()
    with named(short_dir, zone, f"tcp://several:{port}") as daemon, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        daemon.wait_for("worker unreachable, waiting")
        with Worker(f"tcp://{at}:{port}"):
            rounds.until(Verdict.OK)
            assert daemon.exactly("worker up", 1)[0]["endpoint"] == f"tcp://several:{port}"


def test_a_worker_that_moves_is_followed(short_dir: Path) -> None:
    """By itself libzmq goes on with the address that it was given."""
    zone = Zone(short_dir / "zone", moves=["127.0.0.1"])
    port = free_port()
    with named(short_dir, zone, f"tcp://moves:{port}") as daemon, Engine(daemon.path) as engine:
        rounds = Rounds(engine.ready())
        with Worker(f"tcp://127.0.0.1:{port}"):
            rounds.until(Verdict.OK)
        zone.set("moves", ["127.0.0.2"])
        with Worker(f"tcp://127.0.0.2:{port}"):
            rounds.until(Verdict.DISCONNECTED)
            rounds.until(Verdict.OK)


def test_a_configuration_is_checked_without_a_resolver(short_dir: Path) -> None:
    zone = Zone(short_dir / "zone", hangs=None)
    command = [*zone.before, sys.executable, "-m", *zone.program, "--check-config", "--metrics=off"]
    ended = subprocess.run(
        [*command, f"--socket={short_dir}/e.sock", "--worker=tcp://hangs:1"],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", "")
