# SPDX-License-Identifier: Apache-2.0
"""The worker as a program: flags, start, end, log, audit, and drafters of one's own."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time

from pathlib import Path

import msgspec
import pytest

from worker_peer import GEOMETRY, PATIENCE_MS, ROOT, Ask, connected, environment, running_worker

from hostflag import audit
from hostflag.control import Refused
from hostflag.version import VERSION
from hostflag.wire import Status
from refworker.drafter import Drafter
from refworker.loading import LoadFault, drafter_class
from refworker.mock import Mock
from refworker.prompt_lookup import PromptLookup


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "refworker", *flags]
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE_MS / 1000, check=False
    )


def events(log: str) -> list[dict[str, object]]:
    return [msgspec.json.decode(line, type=dict[str, object]) for line in log.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_starts_says_so_and_ends_when_told(tmp_path: Path, number: int) -> None:
    with running_worker(tmp_path) as worker:
        host, _, port = worker.endpoint.removeprefix("tcp://").partition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        worker.process.send_signal(number)
        assert worker.process.wait(timeout=PATIENCE_MS / 1000) == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["worker.log"]
        first, last = events(worker.log())
    assert (first["event"], first["endpoint"], first["pid"]) == ("ready", worker.endpoint, worker.process.pid)
    assert last["event"] == "stopped"


def test_a_unix_socket_is_removed(short_dir: Path) -> None:
    with running_worker(short_dir, endpoint=f"ipc://{short_dir}/w") as worker:
        assert (short_dir / "w").is_socket()
        assert worker.stop() == 0
    assert not (short_dir / "w").exists()


def test_an_endpoint_file_that_another_worker_took_over_stays(tmp_path: Path) -> None:
    with running_worker(tmp_path) as worker:
        (tmp_path / "endpoint").unlink()
        (tmp_path / "endpoint").write_text("another's", encoding="utf-8")
        assert worker.stop() == 0
    assert (tmp_path / "endpoint").read_text(encoding="utf-8") == "another's"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--bind", "127.0.0.1:5741"], "is no endpoint"),
        (["--bind", "tcp://"], "is no endpoint"),
        (["--drafter", "nothing"], "is no drafter: give mock, prompt-lookup or module:Class"),
        (["--drafter", "no_such_module:Class"], "no_such_module"),
        (["--drafter", "math:Class"], "Class"),
        (["--drafter", "math:sin"], "no subclass of refworker.drafter.Drafter"),
        (["--drafter", "refworker.drafter:Drafter"], "lacks draft, extend, forget, start"),
        (["--delay-ms", "-1"], "not a number of milliseconds"),
        (["--delay-ms", "nan"], "not a number of milliseconds"),
        (["--log-level", "loud"], "--log-level"),
        (["--unknown"], "--unknown"),
        (["stray"], "stray"),
    ],
)
def test_flags_that_do_not_fit_end_it_with_a_reason(flags: list[str], why: str) -> None:
    ended = run(*flags)
    assert ended.returncode == 2
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_cannot_be_had_ends_it_with_a_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        cases = [
            ["--bind", endpoint],
            ["--bind", "tcp://127.0.0.1:no"],
            ["--bind", f"ipc://{tmp_path}/{'x' * 200}"],
            ["--bind", "tcp://127.0.0.1:0", "--endpoint-file", str(tmp_path / "no" / "where")],
            ["--bind", "tcp://127.0.0.1:0", "--audit", "/proc/no"],
        ]
        for flags in cases:
            ended = run(*flags)
            assert ended.returncode == 78, ended.stderr
            assert [event["event"] for event in events(ended.stderr)] == ["cannot start"]


def test_it_tells_its_version() -> None:
    assert run("--version").stdout.strip() == f"dsv41-refworker {VERSION}"


def test_the_audit_is_there_while_it_runs(tmp_path: Path) -> None:
    directory = tmp_path / "made" / "here"
    with running_worker(tmp_path, "--audit", str(directory)) as worker, connected(worker.endpoint, 5) as (peer,):
        peer.opened()
        first = peer.send(Ask(1, 1, [4, 5], anchor=9))
        reply = peer.reply()
        peer.send(Ask(2, 3, [0]), context_only=True)
        path = audit.worker_file(directory, worker.process.pid)
        until = time.monotonic() + PATIENCE_MS / 1000
        while len(lines := list(audit.read(path))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert [(line.session, line.round, line.context_only) for line in lines] == [
            ("0000000000000005", 1, False),
            ("0000000000000005", 2, True),
        ]
        assert lines[0].requests[0].rows_crc == audit.rows_crc(first.positions, first.tokens, first.rows)
        assert lines[0].requests[0].drafts_crc == audit.drafts_crc(reply.ids)
        peer.send(Ask(2, 3, [1]), context_only=True)
        peer.ping()
        assert worker.stop() == 0
        assert len(list(audit.read(path))) == 3


def test_drafting_takes_the_time_it_is_told_to(tmp_path: Path) -> None:
    with running_worker(tmp_path, "--delay-ms", "60") as worker, connected(worker.endpoint, 1) as (peer,):
        peer.opened()
        began = time.monotonic()
        for _ in range(5):
            peer.draft(Ask(1, 1, anchor=1))
        assert time.monotonic() - began >= 5 * 0.06


def test_prompt_lookup_drafts(tmp_path: Path) -> None:
    with running_worker(tmp_path, "--drafter", "prompt-lookup") as worker, connected(worker.endpoint, 1) as (peer,):
        assert peer.opened().drafter == "prompt-lookup"
        tokens = [7, 8, 9, 10, 7]
        assert list(peer.draft(Ask(1, 1, range(5), anchor=8, tokens=tokens)).ids) == [9, 10, 7]


def test_the_drafter_of_the_documentation_drafts(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "DRAFTERS.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n# (bigram\.py)\n(.*?)```", text, re.DOTALL)
    assert found is not None
    (tmp_path / found[1]).write_text(found[2], encoding="utf-8")
    with (
        running_worker(tmp_path, "--drafter", "bigram:Bigram", path=tmp_path) as worker,
        connected(worker.endpoint, 1) as (peer,),
    ):
        assert peer.opened().drafter == "bigram:Bigram"
        known = Ask(1, 1, range(5), anchor=5, tokens=[5, 6, 5, 7, 6])
        # After 5 came 7, after 7 came 6, after 6 came 5; of the others nothing is known.
        assert list(peer.draft(known, Ask(2, 1, anchor=3), Ask(3, 1, [0], anchor=4)).ids) == [7, 6, 5, 3, 3, 3, 4, 4, 4]
        assert list(peer.draft(Ask(1, 1, range(2), anchor=5, tokens=[5, 9])).ids) == [9, 5, 9]


MOODY = """
import os
import numpy as np
from refworker.drafter import CannotDraft, Drafter


class Moody(Drafter):
    def start(self, opening):
        self.drafts = opening.geometry.drafts
        if opening.engine.name == "engine 2":
            raise CannotDraft("this drafter is for another model: start it with that one")
        if opening.engine.name == "engine 3":
            1 / 0

    def forget(self, key, position):
        pass

    def extend(self, batch):
        if batch[0].key.request_slot == 1:
            raise RuntimeError("extend")

    def draft(self, wanted):
        anchor = wanted[0].anchor
        if anchor == 1:
            raise RuntimeError("draft")
        if anchor == 2:
            return np.full((len(wanted), self.drafts), -1)
        if anchor == 3:
            return "ids"
        return np.full((len(wanted), self.drafts), anchor)
"""


def test_a_drafter_that_fails_costs_its_round_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "moody.py").write_text(MOODY, encoding="utf-8")
    with (
        running_worker(tmp_path, "--drafter", "moody:Moody", path=tmp_path) as worker,
        connected(worker.endpoint, 1, 2, 3) as (peer, other, broken),
    ):
        assert other.open() == Refused(code="model", reason="this drafter is for another model: start it with that one")
        refused = broken.open()
        assert isinstance(refused, Refused)
        assert refused.code == "drafter"
        peer.opened()
        for _ in range(20):
            assert peer.draft(Ask(1, 1, [0], anchor=9)).status is Status.FAILED
            for anchor in (1, 2, 3):
                assert peer.draft(Ask(2, 1, anchor=anchor)).status is Status.FAILED
            assert list(peer.draft(Ask(2, 1, anchor=9)).ids) == [9] * GEOMETRY.drafts
        peer.send(Ask(1, 1, [0]), context_only=True)  # fails, and gets no answer
        peer.ping()
        assert worker.stop() == 0
        log = events(worker.log())
    assert log[-1]["event"] == "stopped"
    assert log[-1]["rounds_failed"] == 81
    # Said, and not 81 times.
    assert 1 <= sum(event["event"] == "drafter failed" for event in log) <= 10


def test_a_drafter_that_does_not_load_ends_it(tmp_path: Path) -> None:
    (tmp_path / "unloadable.py").write_text(
        "from refworker.mock import Mock\n"
        "class Unloadable(Mock):\n"
        "    @classmethod\n"
        "    def load(cls):\n"
        "        raise OSError('no weights')\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "refworker", "--bind", "tcp://127.0.0.1:0", "--drafter", "unloadable:Unloadable"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 70
    assert "no weights" in ended.stderr


def test_drafters_by_name() -> None:
    assert drafter_class("mock") is Mock
    assert drafter_class("prompt-lookup") is PromptLookup
    assert drafter_class("refworker.mock:Mock") is Mock
    for name in ("", ":", "refworker.mock:", ":Mock", "refworker.mock:STEP", "refworker.nothing:Mock"):
        with pytest.raises(LoadFault):
            drafter_class(name)
    assert issubclass(Mock, Drafter)
