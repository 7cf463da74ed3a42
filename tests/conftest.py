# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test: short directories for sockets, and a check that nothing is left behind."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import leaks
import pytest


ROOT: Final = Path(__file__).resolve().parent.parent
TEMPORARY = pytest.StashKey[str]()
# They compile and compute, or wait, and hold nothing against a clock: `make test` runs their files two at a time, before the others.
COMPUTE: Final = {
    "test_aarch64", "test_build", "test_cuda_sync", "test_engine_stress", "test_fuzz", "test_gpu_run", "test_litmus", "test_litmus_relacy",
    "test_memory_model", "test_model", "test_nap", "test_native_sanitized", "test_packaging", "test_proxyd_check", "test_proxyd_ctl_output",
    "test_refworker_start", "test_refworker_stderr", "test_rehearse_undrafted", "test_selftest_daemon", "test_setup", "test_stress",
}  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """
    Mark our processes, and give temporary files a directory of their own, so that what is left of either shows.

    Ctrl-C is heeded, also where a shell runs the tests in the background: programs that tests interrupt inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[leaks.MARK] = secrets.token_hex(8)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # tmp_path stays where it was
    config.stash[TEMPORARY] = os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="dsv41-t", dir="/tmp")
    config.pluginmanager.import_plugin("stalls")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in COMPUTE:
            item.add_marker(pytest.mark.compute)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[TEMPORARY], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """
    Fail a module that leaves a process, thread, fd, mapped memfd or temporary file.

    On a GPU only processes count: of the rest, what the CUDA driver holds stays until this process ends.
    """
    before = leaks.held()
    yield
    left = leaks.left_since(before)
    if request.path.parent.name == "gpu":
        left = [line for line in left if line.startswith(("process", "zombie"))]
    if left:
        pytest.fail("left behind by this module:\n" + "\n".join(left), pytrace=False)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Give a directory with a path short enough for a Unix socket's 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="d"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's directory."""
    return ROOT
