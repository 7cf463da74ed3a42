# SPDX-License-Identifier: Apache-2.0
"""Forks and ends: a child holds nothing of its parent's sessions, and an end without a close hurts nobody."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine_hand import PATIENCE_S, until
from engine_harness import Ask, FakeDaemon, engine
from shim_daemon import Daemons, Host
from shim_harness import Driver, shim_with

from hostflag import messages as m
from hostflag.verdicts import Skip


# Python 3.12 warns of what this file is about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
ROOT = Path(__file__).resolve().parent.parent


@contextlib.contextmanager
def child(run: Callable[[], None], daemons: Daemons | None = None) -> Iterator[int]:
    """
    Fork; the child runs ``run``, says whether that went well, and stays until the end of the block.

    It closes its copies of the daemons' sockets first: real ones would be other processes.
    """
    told, tell = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        for host in daemons.hosts if daemons else ():
            host.channel.close()
        try:
            run()
            os.write(tell, b"ok")
        except BaseException:  # noqa: BLE001 - the parent raises it
            os.write(tell, traceback.format_exc().encode())
        os.close(tell)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    os.close(tell)
    try:
        said = b""
        while said != b"ok" and (more := os.read(told, 65536)):
            said += more
        assert said == b"ok", said.decode()
        yield pid
    finally:
        os.close(go)
        os.close(told)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def sockets() -> set[str]:
    """Return what socket, eventfd and memfd descriptors this process has, by what they lead to."""
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(fd.readlink()))
    return {name for name in found if name.startswith(("socket:", "anon_inode:[eventfd]", "/memfd:dsv41"))}


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:dsv41-region")


def dead(driver: Driver) -> Callable[[], None]:
    before = maps()

    def run() -> None:
        shim = driver.shim
        for _ in range(2000):  # more than the stream's queue takes
            assert shim.submit(driver.batch).skip is Skip.NO_SESSION
        assert shim.session is None
        assert shim.status().target_only == "this is a forked child"
        assert not shim.wait_session(0)
        assert shim.settle() == 0
        assert maps() < before, "those of the fake daemons are still there, those of the shim are not"
        assert not any(name.startswith("/memfd:dsv41") for name in sockets())
        shim.close()
        shim.close()

    return run


def test_in_a_child_a_shim_is_dead_and_its_parents_is_not(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        with child(dead(driver), daemons):
            for _ in range(50):
                assert driver.ok().session == first.session
            daemons.host(0).die()
            driver.session(other_than=first.session)
            driver.ok()
            assert driver.shim.status().losses == {"HANGUP": 1}
        driver.ok()


def test_a_child_of_a_lost_session_and_of_a_fenced_region(short_dir: Path) -> None:
    with Daemons(short_dir / "e") as daemons, shim_with(short_dir / "e") as driver:
        first = driver.ok()
        daemons.host(0).channel.send(m.Draining(reason="x"))
        daemons.host(0).die()
        driver.session(other_than=first.session)
        driver.ok()
        with child(dead(driver), daemons):
            driver.ok()


def test_the_low_level_session_is_dead_in_a_child_too(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, engine(daemon) as (session, stream, device):

        def run() -> None:
            session.close()
            stream.close()

        with child(run):
            batch = session.batch()
            device.fill(batch, [Ask(0, 1)])
            session.submit(batch)
            daemon.hand.finish(1)
            assert stream.wait(stream.marker(), PATIENCE_S)


SCRIPT = """
import os, sys
from engine_shim import Shim, ShimOptions, SoftStream
from hostflag.messages import EngineIdentity, Geometry
geometry = Geometry(slots=8, max_requests=4, state_slots=8, row_bytes=96, window=16, drafts=3, vocab=1000, ring_bytes=1 << 16)
stream = SoftStream()
def make(name):
    return Shim(sys.argv[1], geometry=geometry, model="test", engine=EngineIdentity(name=name), stream=stream)
shim = make("a")
assert shim.wait_session(20), shim.status()
"""


def run(path: Path, end: str) -> subprocess.CompletedProcess[str]:
    code = textwrap.dedent(SCRIPT) + textwrap.dedent(end)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


STUCK = """
import ctypes
memory = ctypes.create_string_buffer(4096)
at = ctypes.addressof(memory)
batch = shim.batch()
batch.n_requests = 1
batch.set_request(0, slot=0, generation=1, first_row=0, rows=1, draft=True)
batch.set_sources([(at, 96, 96)])
batch.set_arrays(positions=at, tokens=at, num_sampled=at, num_rejected=at, last_sampled=at, next_prefill=at, drafts_out=at)
stream.work(1_000_000_000_000)
assert shim.submit(batch).round == 1
"""
ENDS = {
    "without close": ("", 0, True),
    "by an exception": ("raise SystemExit(3)", 3, True),
    "os._exit": ("os._exit(4)", 4, False),
    "two shims": ("other = make('b'); assert other.wait_session(20)", 0, True),
    "with a stuck stream": (STUCK, 0, False),
    "a child that ends in full": ("pid = os.fork()\nif pid: assert os.waitpid(pid, 0)[1] == 0", 0, True),
    "a child's os._exit": ("pid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)", 0, True),
    "without daemon": ("shim.close(); sys.argv[1] += 'x'; shim = make('c')", 0, True),
}


@pytest.mark.parametrize("how", ENDS)
def test_an_interpreter_ends_whatever_is_open(short_dir: Path, how: str) -> None:
    end, status, goodbye = ENDS[how]
    with Daemons(short_dir / "e") as daemons:
        ended = run(short_dir / "e", end)
        assert (ended.returncode, ended.stderr) == (status, "")
        until(lambda: not daemons._threads[0].is_alive(), "the daemon sees it gone")
        assert daemons.host(0).goodbye == goodbye, "an interpreter that ends as it should takes its leave"


def test_a_killed_engine_with_a_living_child_is_gone(short_dir: Path) -> None:
    end = "pid = os.fork()\nif not pid:\n import time\n time.sleep(60)\nprint(pid, flush=True)\nos.kill(os.getpid(), 9)"
    with Daemons(short_dir / "e") as daemons:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SCRIPT) + end, str(short_dir / "e")],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout
        pid = int(process.stdout.readline())
        try:
            assert process.wait(PATIENCE_S) == -signal.SIGKILL
            until(lambda: not daemons._threads[0].is_alive(), "the daemon sees it gone though a child of it lives")
        finally:
            os.kill(pid, signal.SIGKILL)
            process.stdout.close()


def test_a_child_of_a_shim_that_is_taking_its_leave_holds_no_socket(short_dir: Path) -> None:
    """The closing thread waits for the daemon's last word: from there on nobody but ``close`` knows the socket."""

    def lets_it_wait(host: Host) -> None:
        host.serve()
        host.over.wait(PATIENCE_S)

    with Daemons(short_dir / "e", [lets_it_wait]) as daemons:
        before = sockets()
        with shim_with(short_dir / "e") as driver:
            driver.ok()
            host = daemons.host(0)
            closing = threading.Thread(target=driver.shim.close, args=(PATIENCE_S,))
            closing.start()
            until(lambda: host.goodbye, "the daemon is told")

            def run() -> None:
                assert sockets() <= before, "no end of a session is left"
                driver.shim.close()

            with child(run, daemons):
                assert closing.is_alive(), "it still waits"
                host.die()
                closing.join(PATIENCE_S)
            assert driver.shim.closed
            assert driver.shim.status().rounds["OK"] == 1
