# SPDX-License-Identifier: Apache-2.0
"""The encrypted worker link: who has the wrong key gets nothing and is counted; what a daemon says of keys it cannot use."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from proxyd_engine import Engine
from proxyd_harness import PATIENCE_S, Daemon, until
from proxyd_worker import Rounds
from worker_peer import running_worker

from hostflag.verdicts import Verdict
from proxyd.operator.keygen import keygen


BARRED: Final = "dsv41_proxyd_links_barred_total"


@pytest.fixture
def keys(short_dir: Path) -> Path:
    keygen(short_dir / "keys")
    keygen(short_dir / "others")
    return short_dir / "keys"


def worker_flags(keys: Path, allowed: Path | None = None) -> list[str]:
    return [f"--curve-secret-key-file={keys}/worker.key", f"--curve-allowed-keys-file={allowed or keys / 'daemon.pub'}"]


def daemon_flags(keys: Path, server: Path | None = None) -> list[str]:
    return [f"--curve-secret-key-file={keys}/daemon.key", f"--curve-server-key-file={server or keys / 'worker.pub'}"]


@contextlib.contextmanager
def linked(directory: Path, worker: list[str], daemon: list[str]) -> Iterator[tuple[Daemon, Rounds, Any]]:
    """Run a reference worker, a daemon and a session. Gives daemon, its rounds, worker."""
    with (
        running_worker(directory, "--log-level=info", *worker) as running,
        Daemon(directory, *daemon, worker=running.endpoint) as serving,
        Engine(serving.path) as engine,
    ):
        yield serving, Rounds(engine.ready()), running


def counts(worker: Any) -> dict[str, Any]:
    """End a worker; return the counts of its last line."""
    assert worker.stop() == 0
    last: dict[str, Any] = msgspec.json.decode(worker.log().splitlines()[-1])
    assert last["event"] == "stopped"
    return last


def no_secret_in(keys: Path, *logs: str) -> None:
    for path in keys.glob("*.key"):
        assert not any(path.read_text(encoding="ascii").strip() in log for log in logs)


def test_with_the_right_keys_rounds_get_their_drafts(short_dir: Path, keys: Path) -> None:
    with linked(short_dir, worker_flags(keys), daemon_flags(keys)) as (daemon, rounds, worker):
        rounds.until(Verdict.OK)
        assert daemon.scrape()[BARRED] == 0
        assert "keys_refused" not in counts(worker)
        no_secret_in(keys, worker.log(), str(daemon.lines))


@pytest.mark.parametrize(
    ("sides", "reason", "counted"),
    [
        (("keys", "another pair"), "does not allow our CURVE key", "keys_refused"),
        (("keys", "another server key"), "other CURVE keys than ours", "handshakes_failed"),
        (("keys", "none"), "CURVE keys", "handshakes_failed"),
        (("none", "keys"), "CURVE keys", "handshakes_failed"),
    ],
    ids=lambda value: " and ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_key_gets_nothing_and_is_counted(
    short_dir: Path, keys: Path, sides: tuple[str, str], reason: str, counted: str
) -> None:
    worker, daemon = sides
    others = short_dir / "others"
    flags = {
        "keys": daemon_flags(keys),
        "none": [],
        "another pair": daemon_flags(others, keys / "worker.pub"),
        "another server key": daemon_flags(keys, others / "worker.pub"),
    }[daemon]
    with linked(short_dir, worker_flags(keys) if worker == "keys" else [], flags) as (proxyd, rounds, running):
        until(lambda: proxyd.scrape()[BARRED] >= 3, "several tries were barred")
        assert {rounds.next() for _ in range(3)} == {Verdict.DISCONNECTED}
        lines = proxyd.said("worker link barred")
        assert any(reason in line["reason"] for line in lines), lines
        assert len(lines) <= 3, "one line in ten seconds, whatever the number of tries"
        scraped = proxyd.scrape()
        assert scraped['dsv41_proxyd_worker_bytes_total{way="out"}'] == 0
        last = counts(running)
        assert last[counted] >= 1
        assert "rounds" not in last
        no_secret_in(keys, running.log(), str(proxyd.lines))
        no_secret_in(others, running.log(), str(proxyd.lines))


def test_a_link_comes_up_once_the_worker_allows_its_key(short_dir: Path, keys: Path) -> None:
    with contextlib.ExitStack() as stack:
        wrong = stack.enter_context(running_worker(short_dir, *worker_flags(keys, short_dir / "others" / "daemon.pub")))
        daemon = stack.enter_context(Daemon(short_dir, *daemon_flags(keys), worker=wrong.endpoint))
        rounds = Rounds(stack.enter_context(Engine(daemon.path)).ready())
        daemon.wait_for("worker link barred")
        assert wrong.stop() == 0
        again = short_dir / "again"
        again.mkdir()
        stack.enter_context(running_worker(again, *worker_flags(keys), endpoint=wrong.endpoint))
        rounds.until(Verdict.OK)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda keys: (keys / "daemon.key").chmod(0o640), "mode 0640"),
        (lambda keys: (keys / "daemon.key").unlink(), "No such file"),
        (lambda keys: (keys / "worker.pub").write_text("half"), "worker.pub, line 1: no key"),
    ],
)
@pytest.mark.parametrize("action", ["--check-config", "--log-format=json"])
def test_keys_that_cannot_be_used_end_the_start(  # noqa: PLR0917
    short_dir: Path, root: Path, keys: Path, spoil: Any, words: str, action: str
) -> None:
    secret = (keys / "daemon.key").read_text(encoding="ascii").strip()
    spoil(keys)
    command = [sys.executable, "-m", "proxyd", f"--socket={short_dir}/e.sock", "--metrics=off", action]
    command += daemon_flags(keys)
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 78
    assert words in ended.stderr
    assert secret not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_one_key_file_without_the_other_is_refused(short_dir: Path, root: Path, keys: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "proxyd", "--check-config", daemon_flags(keys)[0]],
        cwd=root, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 78
    assert "go together" in ended.stderr


def test_the_configuration_shows_paths_and_no_keys(short_dir: Path, root: Path, keys: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "proxyd", "--print-config", *daemon_flags(keys)],
        cwd=root, capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )  # fmt: skip
    assert f"{keys}/daemon.key" in ended.stdout
    no_secret_in(keys, ended.stdout)


def test_keygen_makes_both_pairs_or_none(short_dir: Path, root: Path) -> None:
    (short_dir / "k").mkdir()
    (short_dir / "k" / "worker.pub").write_text("mine", encoding="ascii")
    command = [sys.executable, "-m", "proxyd.operator.ctl", "keygen", str(short_dir / "k")]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "worker.pub is there already" in ended.stderr
    assert [path.name for path in (short_dir / "k").iterdir()] == ["worker.pub"]
    (short_dir / "k" / "worker.pub").unlink()
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    no_secret_in(short_dir / "k", done.stdout)
