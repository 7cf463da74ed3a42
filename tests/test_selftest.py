# SPDX-License-Identifier: Apache-2.0
"""The self-test before rounds are parked on a GPU: what it lets pass, what it refuses and why. On the stand-in for libcuda."""

from __future__ import annotations

import contextlib
import json
import os
import threading

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cuda_harness import Cuda, cuda
from engine_harness import LARGE, PATIENCE_S, Ask, Device
from proxyd_harness import Daemon, until

from engine_shim import (
    AsyncRefused,
    DaemonUnreachable,
    Mode,
    SessionOptions,
    Shim,
    ShimOptions,
)
from engine_shim._engine import ffi
from engine_shim.echo import echo_drafts
from engine_shim.selftest import Report, SelfTest, release_kept
from engine_shim.selftest.rounds import Rounds
from hostflag.messages import EngineIdentity
from hostflag.verdicts import Verdict


OUT_OF_MEMORY = 2
STEPS = ["attributes", "registration", "ordering", "delay", "other streams", "module load"]
COPIES_A_ROUND = 15  # of the self-test's, to and fro included: any of them late enough is of a round
ROOT: Final = Path(__file__).resolve().parent.parent
ME = EngineIdentity(name="trial", pid=os.getpid())
ECHO = SessionOptions(echo_us=0.0)


def tried(gpu: Cuda, path: Path, **options: Any) -> Report:
    return SelfTest(gpu.stream, path, geometry=LARGE, model="test", engine=ME, **options).run()


def begin(gpu: Cuda, path: Path, **options: Any) -> Shim:
    settings = {"deadline_ms": 10_000.0, "start_timeout_s": PATIENCE_S, "session": ECHO, **options}
    return Shim(
        path,
        geometry=LARGE,
        model="test",
        engine=ME,
        stream=gpu.stream,
        mode=Mode.ASYNC,
        options=ShimOptions(**settings),
    )


@contextlib.contextmanager
def shim_on(gpu: Cuda, path: Path, **options: Any) -> Iterator[Shim]:
    shim = begin(gpu, path, **options)
    try:
        yield shim
    finally:
        shim.close(PATIENCE_S)


def echoed(gpu: Cuda, shim: Shim) -> None:
    """Do a round, and hold its drafts against the rows that were meant."""
    batch, device = shim.batch(), Device(LARGE)
    out = device.fill(batch, [Ask(3, 2, first=5)])
    ticket = shim.submit(batch)
    gpu.drained()
    assert ticket.ref
    assert shim.verdict(ticket.ref) is Verdict.OK
    rows = [(at, device.token(3, at), device.row(3, 1, at)) for at in (5, 6)]
    assert out[0].tolist() == echo_drafts(rows, 103, LARGE.drafts, LARGE.vocab)  # last_sampled is 100 + slot


def test_a_device_that_keeps_its_order_passes(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        report = tried(gpu, daemon.path, timed=5)
        assert report.passed
        assert report.reason is None
        assert [step.name for step in report.steps] == STEPS
        assert all(step.passed for step in report.steps)
        assert {name: latency.rounds for name, latency in report.latencies.items()} == {
            "empty round": 5,
            "without rows": 5,
            "3 requests": 5,
        }
        assert gpu.fake.registered == 0
        assert "cuLaunchKernel" not in report.calls
        assert json.loads(report.json())["device"] == "stand-in"
        assert until(lambda: len(daemon.said("session over")) == 2, "both sessions are over")


def test_a_module_is_loaded_while_a_round_is_parked(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        before = gpu.fake.held_up
        assert tried(gpu, daemon.path, rounds=1).passed
        assert gpu.fake.held_up == before + 1, (
            "the load waited in the driver, and the daemon released the round all the same"
        )


@pytest.mark.parametrize(("queues", "still"), [(1, 8), (4, 4), (16, 1)])
def test_streams_that_share_the_queue_of_a_parked_one_are_found(short_dir: Path, queues: int, still: int) -> None:
    """One of them is enough: an engine's copies may be on it. Each stream of ours has a second one beside it, for memory."""
    with Daemon(short_dir) as daemon, cuda() as gpu:
        gpu.fake.queues(queues)
        report = tried(gpu, daemon.path)
        assert report.reason == (
            f"{still} of 8 other streams stood still while one was parked, 3 times out of 3 (CUDA_DEVICE_MAX_CONNECTIONS is unset): "
            "set it to 32, the most there are"
        )
        assert [step.name for step in report.steps if not step.passed] == ["other streams"]
        assert gpu.fake.registered == 0


def test_streams_that_were_slow_once_are_looked_at_again(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parks = 0
    park = Rounds._park

    with Daemon(short_dir) as daemon, cuda() as gpu:

        def slow_at_first(rounds: Rounds) -> None:
            nonlocal parks
            parks += 1
            gpu.fake.queues(1 if parks == 1 else 0)
            park(rounds)

        monkeypatch.setattr(Rounds, "_park", slow_at_first)
        report = tried(gpu, daemon.path)
        assert report.passed, report.reason
        (step,) = (step for step in report.steps if step.name == "other streams")
        assert step.detail.startswith(
            "8 others went on beside a parked one, 8 of them only when all were looked at again"
        )


def test_a_wrong_bit_is_found(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        gpu.fake.corrupt(10 * COPIES_A_ROUND)
        report = tried(gpu, daemon.path)
        assert not report.passed
        assert report.reason is not None
        assert "a copy went wrong" in report.reason
        assert [step.passed for step in report.steps] == [True, True, False]
        assert gpu.fake.registered == 0, "it moves, so it is taken down"


def test_a_failed_registration_is_named(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        gpu.driver.fail_nth(1, OUT_OF_MEMORY, function="cuMemHostRegister")
        report = tried(gpu, daemon.path)
        assert report.reason is not None
        assert "cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY: out of memory" in report.reason
        assert report.steps[-1].name == "registration"


def test_a_stream_that_does_not_move_is_given_up_and_all_of_it_kept(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        gpu.fake.stick(on=True)
        before = gpu.driver.calls()
        report = tried(gpu, daemon.path)
        assert (report.passed, report.stuck) == (False, True)
        assert report.reason == "the stream does not move: it was not past a round 2 s after it was submitted"
        for function in ("cuMemHostUnregister", "cuMemFree", "cuMemFreeHost", "cuStreamDestroy"):
            assert gpu.driver.calls().get(function) == before.get(function), function
        assert not release_kept()
        assert gpu.fake.registered == 1
        gpu.fake.stick(on=False)
        assert release_kept()
        assert gpu.fake.registered == 0


def test_a_driver_call_that_does_not_return_is_left_behind(short_dir: Path) -> None:
    go_on = threading.Event()

    @ffi.callback("int(void **, const void *)")  # type: ignore[untyped-decorator]
    def hang(module: ffi.CData, image: ffi.CData) -> int:
        go_on.wait()
        return OUT_OF_MEMORY

    with Daemon(short_dir) as daemon, cuda() as gpu:
        before = gpu.driver.replace("cuModuleLoadData", int(ffi.cast("uintptr_t", hang)))
        report = tried(gpu, daemon.path, rounds=1, limit_s=2.0)
        assert report.stuck
        assert report.reason == "the self-test did not come back within 2 s, during: module load"
        assert gpu.fake.registered == 1, "what the device may touch is kept"
        go_on.set()
        until(
            lambda: not any(thread.name == "hf-selftest" for thread in threading.enumerate()),
            "the thread ends after all",
        )
        gpu.driver.replace("cuModuleLoadData", before)


def test_without_a_daemon_nothing_is_learned(short_dir: Path) -> None:
    with cuda() as gpu, pytest.raises(DaemonUnreachable):
        tried(gpu, short_dir / "nobody.sock")


# ---- in a shim ----


def test_a_shim_tries_its_stream_once_and_then_parks_rounds(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        with shim_on(gpu, daemon.path) as shim:
            assert (shim.status().mode, shim.status().async_refusal) == (Mode.ASYNC, None)
            echoed(gpu, shim)
        calls = gpu.driver.calls()["cuModuleLoadData"]
        with shim_on(gpu, daemon.path) as shim:
            echoed(gpu, shim)
        assert gpu.driver.calls()["cuModuleLoadData"] == calls == 1


def test_a_shim_without_a_daemon_tries_its_stream_once_there_is_one(short_dir: Path) -> None:
    with cuda() as gpu, shim_on(gpu, short_dir / "e.sock") as shim:
        before = (shim.session, gpu.stream.untried)
        assert before == (None, True)
        with Daemon(short_dir):
            assert shim.wait_session(PATIENCE_S)
            assert not gpu.stream.untried
            echoed(gpu, shim)


@pytest.mark.parametrize("onwards", [False, True])
def test_rounds_are_synchronous_where_registration_fails(short_dir: Path, onwards: bool) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        gpu.driver.fail_nth(1, OUT_OF_MEMORY, function="cuMemHostRegister", onwards=onwards)
        with shim_on(gpu, daemon.path) as shim:
            status = shim.status()
            assert status.mode is Mode.SYNC
            assert status.async_refusal is not None
            assert "CUDA_ERROR_OUT_OF_MEMORY" in status.async_refusal
            echoed(gpu, shim)


def test_a_strict_start_raises_where_the_self_test_fails(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        gpu.fake.corrupt(10 * COPIES_A_ROUND)
        with (
            pytest.raises(AsyncRefused, match=r"the self-test failed: .*a copy went wrong"),
            shim_on(gpu, daemon.path, strict=True),
        ):
            pass


def test_a_device_without_an_attribute_runs_synchronous_rounds(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon, cuda() as gpu:
        gpu.stream.async_refusal = "as CAN_USE_64_BIT_STREAM_MEM_OPS 0 does"
        with shim_on(gpu, daemon.path) as shim:
            assert shim.status().mode is Mode.SYNC
            echoed(gpu, shim)
        assert gpu.stream.untried
