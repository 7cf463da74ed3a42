# SPDX-License-Identifier: Apache-2.0
"""Faults that touch the GPU: daemons that die or stop, driver calls that fail, closing while parked, loads while parked."""

from __future__ import annotations

import time

from pathlib import Path

import pytest

from engine_hand import PATIENCE_S, until
from gpu_harness import Ask, daemon, engine, torch, worker

from engine_shim import CudaDriver, StreamStuck, SubmitFailed
from engine_shim._engine import ffi
from hostflag.verdicts import Verdict


LAUNCH_FAILED = 719  # CUDA_ERROR_LAUNCH_FAILED
SLACK_S = 1.0
SLOW = "--network-timeout-ms=5000"
STEP = [Ask(0, 3, 2), Ask(1, 50, 3)]


def test_a_kill_releases_a_parked_round_at_once(short_dir: Path) -> None:
    with (
        worker(delay_ms=4_000.0) as endpoint,
        daemon(short_dir, endpoint, SLOW) as process,
        engine(short_dir / "e.sock", deadline_ms=60_000.0) as one,
    ):
        until(
            lambda: any("worker_up" in name and value for name, value in process.scrape().items()), "the worker is up"
        )
        ticket = one.submit(STEP)
        assert not one.drained(0.2), "parked"
        killed = time.monotonic()
        process.process.kill()
        assert one.drained()
        assert time.monotonic() - killed < SLACK_S
        assert one.book(ticket.ref, STEP, one.tensors.drafts[:2].tolist()) is Verdict.LOST


def test_adoption_makes_no_driver_call(short_dir: Path) -> None:
    with worker() as endpoint, engine(short_dir / "e.sock") as one:
        with daemon(short_dir, endpoint) as process:
            assert one.shim.wait_session(PATIENCE_S)
            one.ok(STEP)
            assert one.drained()
            old, before = one.shim.session, one.stream.driver.calls()
            process.process.kill()
        with daemon(short_dir, endpoint):
            assert one.shim.wait_session(PATIENCE_S, other_than=old)
            assert one.stream.driver.calls() == before, "from the loss to the next session"
            one.ok(STEP)
        assert one.shim.status().adoptions == 1
        assert one.wrong == 0


def test_a_driver_call_that_fails_at_each_step_of_a_submit(short_dir: Path) -> None:
    """Whichever it is: the submit says so, what was enqueued ends, drafts stay legal, the next session works on another region."""
    with (
        worker() as endpoint,
        daemon(short_dir, endpoint),
        engine(short_dir / "e.sock", regions=40, deadline_ms=300.0) as one,
    ):
        one.ok(STEP)
        failures = 0
        for nth in range(1, 40):
            old = one.shim.session
            one.stream.driver.fail_nth(nth, LAUNCH_FAILED)
            try:
                one.submit(STEP)
            except SubmitFailed:
                failures += 1
            else:
                one.stream.driver.fail_nth(0, 0)
                break
            assert one.drained(), f"call {nth} failed: what was enqueued before it still ends"
            drafts = one.tensors.drafts[:2].tolist()
            assert all(0 <= draft < 129_280 for row in drafts for draft in row)
            assert one.shim.wait_session(PATIENCE_S, other_than=old)
            one.ok(STEP)
        assert failures >= 5, "copies, write and wait, the reply's copy, consumed: each failed once"
        assert one.wrong == 0
        assert one.shim.status().losses == {"SUBMIT": failures}
        print(f"{failures} driver calls of a submit failed, one after the other")


def test_registered_memory_is_kept_while_the_stream_is_parked(short_dir: Path) -> None:
    """Parked for good by somebody else: closing says so, within its time, and nothing is unregistered or freed."""
    driver = CudaDriver()
    with (
        worker() as endpoint,
        daemon(short_dir, endpoint),
        engine(short_dir / "e.sock", driver=driver, deadline_ms=300.0) as one,
    ):
        one.ok(STEP)
        word = one.stream.host_alloc(4096)
        one.stream.wait_word(word, 1)
        one.submit(STEP)
        began = time.monotonic()
        before = driver.calls()
        with pytest.raises(StreamStuck):
            one.shim.close(1.0)
        assert time.monotonic() - began < 1.0 + SLACK_S
        after = driver.calls()
        for function in ("cuMemHostUnregister", "cuMemFree", "cuMemFreeHost"):
            assert after.get(function, 0) == before.get(function, 0), function
        ffi.cast("uint32_t *", word)[0] = 1
        assert one.drained()
        one.shim.close(PATIENCE_S)
        assert driver.calls()["cuMemHostUnregister"] == driver.calls()["cuMemHostRegister"]
        one.stream.host_free(word)


def test_close_with_a_parked_round(short_dir: Path) -> None:
    with (
        worker(delay_ms=4_000.0) as endpoint,
        daemon(short_dir, endpoint, SLOW) as process,
        engine(short_dir / "e.sock", deadline_ms=30_000.0) as one,
    ):
        until(
            lambda: any("worker_up" in name and value for name, value in process.scrape().items()), "the worker is up"
        )
        one.submit(STEP)
        assert not one.drained(0.1), "parked"
        began = time.monotonic()
        one.shim.close(1.0)
        assert time.monotonic() - began < 1.0 + SLACK_S
        assert one.drained()
        drafts = one.tensors.drafts[:2].tolist()
        assert all(0 <= draft < 129_280 for row in drafts for draft in row)


def test_a_module_is_loaded_in_every_parked_round(short_dir: Path) -> None:
    with worker(delay_ms=15.0) as endpoint, daemon(short_dir, endpoint), engine(short_dir / "e.sock") as one:
        one.ok(STEP)
        for index in range(30):
            step = [Ask(0, index, 2)]
            ticket = one.submit(step)
            assert ticket.ref is not None
            assert not one.shim.consumed(ticket.ref), "parked"
            one.stream.load_module()
            assert one.drained()
            assert one.book(ticket.ref, step, one.tensors.drafts[:1].tolist()) is Verdict.OK
        assert one.wrong == 0


def test_more_launches_than_a_parked_stream_takes(short_dir: Path) -> None:
    """The launching thread is held up until the release, which needs nothing of it."""
    with (
        worker(delay_ms=100.0) as endpoint,
        daemon(short_dir, endpoint, SLOW),
        engine(short_dir / "e.sock", deadline_ms=8_000.0) as one,
    ):
        one.ok(STEP)
        counter = torch.zeros(1, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(one.torch_stream):
            ticket = one.submit(STEP)
            for _ in range(3_000):
                counter.add_(1)
        one.torch_stream.synchronize()
        assert counter.item() == 3_000
        assert one.book(ticket.ref, STEP, one.tensors.drafts[:2].tolist()) is Verdict.OK
        assert one.wrong == 0
