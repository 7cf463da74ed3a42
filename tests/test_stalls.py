# SPDX-License-Identifier: Apache-2.0
"""The plugin that runs a test once more: only after a stall, only once, and never what must not be doubted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

from pathlib import Path


# The machine stands still for whoever measures it: the measuring processes are stopped.
BEGINNING = """
import signal, time
from pathlib import Path
import pytest

def times(name):
    runs = Path("runs") / name
    runs.parent.mkdir(exist_ok=True)
    runs.write_text((runs.read_text() if runs.exists() else "") + "x")
    return len(runs.read_text())

@pytest.fixture
def stall(request):
    watchers = request.config.pluginmanager.get_plugin("stalls in tests").watchers
    def stop():
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in watchers.processes:
                process.send_signal(number)
            time.sleep(0.15 if number is signal.SIGSTOP else 0.05)
    return stop
"""
EVERYWHERE = """
def test_call(stall): assert times("call") > 1 or {stall}

@pytest.fixture
def before(stall): assert times("setup") > 1 or {stall}
def test_setup(before): pass

@pytest.fixture
def after(stall):
    yield
    assert times("teardown") > 1 or {stall}
def test_teardown(after): pass
"""


def outcome(directory: Path, root: Path, code: str) -> tuple[dict[str, int], dict[str, int], str]:
    """Run these tests with the plugin; return how many had which outcome, how often each was run, and what pytest said."""
    directory.joinpath("test_it.py").write_text(BEGINNING + textwrap.dedent(code))
    directory.joinpath("pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "stalls", "-p", "no:cacheprovider", "test_it.py"],
        cwd=directory, env={**os.environ, "PYTHONPATH": str(root / "tests")}, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1]
    runs = {path.name: len(path.read_text()) for path in directory.joinpath("runs").iterdir()}
    return {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|error)", last)}, runs, done.stdout


def test_what_fails_in_a_stall_is_run_once_more(tmp_path: Path, root: Path) -> None:
    counts, runs, said = outcome(tmp_path, root, EVERYWHERE.replace("{stall}", "stall()"))
    assert counts == {"passed": 3}, said
    assert runs == {"call": 2, "setup": 2, "teardown": 2}
    for where in runs:
        assert re.search(
            rf"::test_{where}: a stall of \d\d+ ms; its first failure:\n    >.*times\(.{where}.\) > 1", said
        ), said


def test_what_fails_without_one_fails_at_once(tmp_path: Path, root: Path) -> None:
    counts, runs, said = outcome(tmp_path, root, EVERYWHERE.replace("{stall}", "False"))
    assert counts == {"failed": 1, "error": 2, "passed": 1}, said
    assert runs == {"call": 1, "setup": 1, "teardown": 1}
    assert "run once more" not in said


def test_it_is_run_once_more_and_no_oftener(tmp_path: Path, root: Path) -> None:
    counts, runs, said = outcome(
        tmp_path,
        root,
        """
        def test_fails_twice(stall): assert times("twice") > 9 or stall()

        # The stall was the test's before.
        def test_after_a_stall(): assert times("after") > 1

        @pytest.fixture(scope="module")
        def shared():
            output = Path("/proc/self/fd/1").readlink()
            yield []
            assert Path("/proc/self/fd/1").readlink() == output

        # What the module shares is new for the second run.
        def test_that_spoils(shared, stall):
            shared.append(1)
            if times("spoils") == 1:
                shared.append(2)
                stall()
            assert shared == [1]

        def test_that_shares(shared): assert shared == [1]
        """,
    )
    assert counts == {"failed": 2, "passed": 2}, said
    assert runs == {"twice": 2, "after": 1, "spoils": 2}


NEVER = [
    "assert -11 == 130",
    "assert 0 == (-6), 'its status'",
    'assert not "Fatal Python error: Segmentation fault"',
    'assert not {"wrong_drafts": 3}',
    'print("ERROR: AddressSanitizer: heap-use-after-free"); assert False',
    'pytest.fail("left behind by this module: a process", pytrace=False)',
    'pytest.fail("Timeout (>120.0s) from pytest-timeout.")',
]


def test_what_must_not_be_doubted_is_never_run_again(tmp_path: Path, root: Path) -> None:
    tests = [
        f"def test_{number}(stall):\n    times('{number}')\n    stall()\n    {failure}\n"
        for number, failure in enumerate(NEVER)
    ]
    counts, runs, said = outcome(tmp_path, root, "\n".join(tests))
    assert counts == {"failed": len(NEVER)}, said
    assert set(runs.values()) == {1}
