# SPDX-License-Identifier: Apache-2.0
"""Rounds on a CUDA stream, on the stand-in for libcuda: bit-exact, each driver call made to fail, regions that stay registered."""

from __future__ import annotations

import contextlib
import errno
import os

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cuda_harness import Cuda, cuda
from engine_harness import LARGE, PATIENCE_S, SMALL, Ask, Device, FakeDaemon, until
from proxyd_harness import Daemon
from test_engine_real import drafts_after, worker

from engine_shim import Batch, Mode, Session, SessionOptions, Shim, ShimOptions, StreamStuck, SubmitFailed, connect
from hostflag.messages import EngineIdentity, Geometry
from hostflag.verdicts import Loss, Skip, Verdict


# What a drafting round of one request and three sources enqueues: four headers, positions, tokens, three sources, write
# and wait (one or two), the reply, consumed.
CALLS = 12
INVALID_VALUE = 1
ME = EngineIdentity(name="cuda", pid=os.getpid())


@contextlib.contextmanager
def session_on(
    gpu: Cuda, path: Path, geometry: Geometry = SMALL, *, deadline_ms: float = 10_000.0, batched: bool = True
) -> Iterator[tuple[Session, Batch, Device]]:
    session = connect(
        path, geometry=geometry, model="test", engine=ME, stream=gpu.stream, deadline_ms=deadline_ms,
        timeout_s=PATIENCE_S, options=SessionOptions(batched=batched),
    )  # fmt: skip
    try:
        yield session, session.batch(), Device(geometry)
    finally:
        gpu.fake.stick(on=False)
        if not session.closed:
            session.give_up()
        session.close()


@contextlib.contextmanager
def shim_on(gpu: Cuda, path: Path, **options: object) -> Iterator[Shim]:
    settings = {"deadline_ms": 10_000.0, "respawns": 1000, "self_test": False, **options}
    shim = Shim(
        path, geometry=LARGE, model="test", engine=ME, stream=gpu.stream, mode=Mode.ASYNC,
        options=ShimOptions(**settings),  # type: ignore[arg-type]
    )  # fmt: skip
    try:
        yield shim
    finally:
        shim.close(PATIENCE_S)


@pytest.mark.parametrize(("copies", "batched"), [(0, True), (0, False), (1, True), (2, True)])
def test_every_draft_is_exact_through_the_real_daemon(short_dir: Path, copies: int, batched: bool) -> None:
    with (
        worker(short_dir) as endpoint,
        Daemon(short_dir, "--network-timeout-ms=9000", worker=endpoint) as daemon,
        cuda(copies) as gpu,
        session_on(gpu, daemon.path, LARGE, batched=batched) as (session, batch, device),
    ):

        def ok() -> bool:
            device.fill(batch, [Ask(0, 1)])
            ticket = session.submit(batch)
            gpu.drained()
            assert ticket.round
            return session.verdict(ticket.round) is Verdict.OK

        until(ok, "the worker is there")
        for step in range(1, 9):
            asks = [Ask(slot, 2, first=100 * step, gap=step % 3) for slot in range(1, 4)]
            out = device.fill(batch, asks)
            ticket = session.submit(batch)
            gpu.drained()
            assert ticket.round
            assert session.verdict(ticket.round) is Verdict.OK
            for ask, drafts in zip(asks, out, strict=True):
                assert drafts.tolist() == drafts_after(device, ask.slot, ask.first + 1)
        assert session.status().expired == 0


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_rows_of_a_round_are_those_of_the_device_bit_for_bit(short_dir: Path, copies: int) -> None:
    with (
        FakeDaemon(short_dir) as daemon,
        cuda(copies) as gpu,
        session_on(gpu, daemon.path) as (session, batch, device),
    ):
        out = device.fill(batch, [Ask(2, 3, first=7, gap=1), Ask(1, 2, first=40, gap=2)])
        session.submit(batch)
        until(lambda: session.word("gathered") == 1, "gathered")
        for shipment in daemon.hand.shipped(1):
            device.check(shipment)
        assert [one.positions for one in daemon.hand.shipped(1)] == [[7, 8, 9], [40, 41]]
        daemon.hand.finish(1, Verdict.OK, range(6))
        gpu.drained()
        assert out.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_round_takes_so_many_calls_and_launches_nothing(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, cuda() as gpu, session_on(gpu, daemon.path) as (session, batch, device):
        device.fill(batch, [Ask(0, 2)])
        before = gpu.driver.calls()
        session.submit(batch)
        after = gpu.driver.calls()
        made = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
        assert made.pop("cuStreamIsCapturing") == 1
        assert made == {
            "cuMemcpyDtoHAsync": 6,
            "cuMemcpy2DAsync": 3,
            "cuStreamBatchMemOp": 1,
            "cuMemcpyHtoDAsync": 1,
            "cuStreamWriteValue32": 1,
        }
        assert sum(made.values()) == CALLS
        daemon.hand.finish(1)


@pytest.mark.parametrize("nth", range(1, CALLS + 1))
def test_a_driver_call_that_fails_in_a_submit(short_dir: Path, nth: int) -> None:
    """Nobody hangs, the drafts are legal, and whoever submitted reads the driver's own name for it."""
    with FakeDaemon(short_dir) as daemon, cuda() as gpu, session_on(gpu, daemon.path) as (session, batch, device):
        device.fill(batch, [Ask(0, 2)])
        session.submit(batch)
        daemon.hand.finish(1)
        out = device.fill(batch, [Ask(0, 2, first=2)])
        gpu.driver.fail_nth(nth, INVALID_VALUE)
        with pytest.raises(SubmitFailed, match=r"\(cu\w+: CUDA_ERROR_INVALID_VALUE: .*the session is lost"):
            session.submit(batch)
        gpu.drained()
        assert session.lost is Loss.SUBMIT
        assert session.word("submitted") == 1, "the daemon never hears of it"
        assert out.tolist() == [[0, 0, 0]], "legal ids"
        assert session.submit(batch).skip is Skip.NO_SESSION


def test_an_error_says_what_became_of_the_session(short_dir: Path) -> None:
    """Refused beforehand it goes on. An operation that fails loses it, also where the driver's word for that is a capture."""
    with FakeDaemon(short_dir) as daemon, cuda() as gpu, session_on(gpu, daemon.path) as (session, batch, device):
        daemon.beat()
        device.fill(batch, [Ask(0, 1)])
        gpu.driver.fail_nth(1, 201, function="cuStreamIsCapturing")
        with pytest.raises(SubmitFailed, match="INVALID_CONTEXT") as refused:
            session.submit(batch)
        assert "lost" not in str(refused.value)
        assert session.status().lost is Loss.NONE
        gpu.driver.fail_nth(1, 900, function="cuStreamBatchMemOp")
        with pytest.raises(SubmitFailed, match="the session is lost") as failed:
            session.submit(batch)
        assert failed.value.error == errno.EIO
        assert session.lost is Loss.SUBMIT


def test_a_driver_that_takes_nothing_any_more_keeps_the_region_registered(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, cuda() as gpu, session_on(gpu, daemon.path) as (session, batch, device):
        device.fill(batch, [Ask(0, 2)])
        gpu.driver.fail_nth(9, INVALID_VALUE, onwards=True)
        with pytest.raises(SubmitFailed):
            session.submit(batch)
        with pytest.raises(StreamStuck):
            session.close(0.2)
        assert gpu.fake.registered == 1
        gpu.driver.fail_nth(0, 0)
        session.close()
        assert gpu.fake.registered == 0


def test_a_submit_into_a_capture_does_nothing_and_costs_nothing(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, cuda() as gpu, session_on(gpu, daemon.path) as (session, batch, device):
        device.fill(batch, [Ask(0, 2)])
        gpu.fake.capture(gpu.stream, on=True)
        with pytest.raises(SubmitFailed, match="being captured into a graph"):
            session.submit(batch)
        gpu.fake.capture(gpu.stream, on=False)
        assert session.lost is Loss.NONE
        assert session.submit(batch).round == 1
        daemon.hand.finish(1)


def test_a_parked_round_keeps_its_region_until_the_stream_is_past_it(short_dir: Path) -> None:
    with FakeDaemon(short_dir) as daemon, cuda() as gpu, session_on(gpu, daemon.path) as (session, batch, device):
        held_up = gpu.fake.held_up
        device.fill(batch, [Ask(0, 2)])
        session.submit(batch)
        gpu.parks()
        gpu.fake.stick(on=True)  # so that not even its release helps
        with pytest.raises(StreamStuck):
            session.close(0.2)
        with pytest.raises(StreamStuck, match="in use"):
            gpu.stream.close()
        assert gpu.fake.registered == 1
        assert not {"cuMemHostUnregister", "cuMemFree"} & set(gpu.driver.calls())
        gpu.fake.stick(on=False)
        session.close()
        assert gpu.fake.registered == 0
        assert gpu.fake.held_up == held_up, "nothing was unregistered or freed behind a parked stream"


def test_a_session_after_a_kill_adopts_its_region_without_a_driver_call(short_dir: Path) -> None:
    with worker(short_dir) as endpoint, cuda() as gpu, contextlib.ExitStack() as stack:
        with Daemon(short_dir, worker=endpoint) as daemon:
            shim = stack.enter_context(shim_on(gpu, daemon.path))
            first = shim.session
            assert first is not None
            batch, device = shim.batch(), Device(LARGE)
            device.fill(batch, [Ask(0, 2)])
            shim.submit(batch)
            gpu.drained()
            before = gpu.driver.calls()
            daemon.process.kill()
        with Daemon(short_dir, worker=endpoint):
            assert shim.wait_session(PATIENCE_S, other_than=first)
            assert gpu.driver.calls() == before
            assert (shim.status().registrations, shim.status().adoptions) == (1, 1)
            device.fill(batch, [Ask(0, 2, first=10)])
            assert shim.submit(batch).round is not None
            gpu.drained()


def test_batches_take_arrays_that_say_their_address(short_dir: Path) -> None:
    class Array:
        """As CuPy's are."""

        def __init__(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
            self._array = array
            self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3}

    with FakeDaemon(short_dir) as daemon, cuda() as gpu, session_on(gpu, daemon.path) as (session, batch, device):
        device.fill(batch, [Ask(0, 2)])
        rows, positions, tokens, sampled, rejected, last, following, out, columns = device.kept[-1]
        batch.set_sources([Array(column[:, : SMALL.row_bytes // 3]) for column in columns])
        batch.set_arrays(
            positions=Array(positions), tokens=Array(tokens), num_sampled=Array(sampled), num_rejected=Array(rejected),
            last_sampled=Array(last), next_prefill=Array(following), drafts_out=Array(out),
        )  # fmt: skip
        session.submit(batch)
        until(lambda: session.word("gathered") == 1, "gathered")
        for shipment in daemon.hand.shipped(1):
            device.check(shipment)
        daemon.hand.finish(1, Verdict.OK, range(3))
        gpu.drained()
        assert out.tolist() == [[0, 1, 2]]
        with pytest.raises(TypeError, match="is no device array"):
            batch.set_sources([object()])
        with pytest.raises(TypeError, match="not in CUDA memory"):
            batch.set_sources([rows])
