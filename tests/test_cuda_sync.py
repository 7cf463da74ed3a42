# SPDX-License-Identifier: Apache-2.0
"""Synchronous rounds on a device whose stream neither waits for words nor writes them: what they are there for. On the stand-in for libcuda."""

from __future__ import annotations

import contextlib

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from cuda_harness import Fake, library
from engine_harness import PATIENCE_S, Ask, Device, until
from shim_daemon import Daemons

from engine_shim import CudaDriver, CudaStream, Mode, SessionOptions, Shim, ShimOptions, SubmitFailed
from engine_shim._engine import lib
from hostflag.messages import EngineIdentity, Geometry
from hostflag.verdicts import Skip, Verdict


TIGHT: Final = Geometry(
    slots=8, max_requests=4, state_slots=8, row_bytes=3072, window=16, drafts=3, vocab=1000, ring_bytes=1 << 16
)
LACKS: Final = [lib.HFC_HOST_REGISTER, lib.HFC_STREAM_MEM_OPS]
NOT_SUPPORTED: Final = 801


@dataclass
class Bench:
    """A shim on a device that lacks something, with what it stands on."""

    shim: Shim
    stream: CudaStream
    driver: CudaDriver
    fake: Fake
    device: Device

    def submit(self, *asks: Ask) -> Any:
        """Submit a step of these requests; its memory stays."""
        batch = self.shim.batch()
        self.device.fill(batch, asks)
        return self.shim.submit(batch)


@contextlib.contextmanager
def lacking(short_dir: Path, attribute: int, respawns: int = 100, **session: Any) -> Iterator[Bench]:
    fake, driver = Fake(), CudaDriver(str(library()))
    driver.use_primary()
    fake.attribute(attribute, 0)
    stream = CudaStream.create(driver=driver, copies=0)
    if attribute == lib.HFC_STREAM_MEM_OPS:  # such a device's driver says so at each write
        driver.fail_nth(1, NOT_SUPPORTED, function="cuStreamWriteValue32", onwards=True)
    options = ShimOptions(deadline_ms=5000, respawns=respawns, session=SessionOptions(**session))
    try:
        with Daemons(short_dir / "e"):
            shim = Shim(
                short_dir / "e",
                geometry=TIGHT,
                model="m",
                engine=EngineIdentity(name="x"),
                stream=stream,
                options=options,
            )
            try:
                assert shim.status().mode is Mode.SYNC
                assert shim.wait_session(PATIENCE_S)
                yield Bench(shim, stream, driver, fake, Device(TIGHT))
            finally:
                fake.freeze(on=False)
                shim.close(PATIENCE_S)
    finally:
        fake.attribute(attribute, 1)
        driver.fail_nth(0, 0)
        stream.close(PATIENCE_S)


@pytest.mark.parametrize("attribute", LACKS)
def test_a_flush_is_synchronous_too(short_dir: Path, attribute: int) -> None:
    with lacking(short_dir, attribute) as bench:
        ticket = bench.submit(*(Ask(slot, 16, prefill=True) for slot in range(4)))
        assert ticket.rows_deferred > 0
        while ticket.rows_deferred:
            until(lambda: bench.shim.settle() >= 0, "settled")
            ticket = bench.shim.flush()
            assert ticket.skip in {Skip.NONE, Skip.SLOTS, Skip.RING}
        assert bench.shim.status().losses == {}


@pytest.mark.parametrize(
    ("attribute", "times"), [(LACKS[0], 1), (LACKS[1], 2)]
)  # without registration a copy waits for 10 s
def test_a_session_ends_once_the_stream_that_was_late_moves(short_dir: Path, attribute: int, times: int) -> None:
    """Though the stream takes no write that would say when; so the shim can be closed, too."""
    with lacking(short_dir, attribute, stream_limit_ms=50.0) as bench:
        for late in range(times):
            bench.fake.freeze(on=True)
            with pytest.raises(SubmitFailed, match="the session is lost"):
                bench.submit(Ask(0, 1))
            bench.fake.freeze(on=False)
            drafting(bench)
            assert bench.shim.status().losses == {"SUBMIT": late + 1}
            until(lambda: not bench.shim._pool.unreaped, "the lost session is ended")


def test_it_ends_also_where_the_stream_is_busy_at_every_submit(short_dir: Path) -> None:
    """As an engine's is: what it is past is looked at, and no submit waits for it to be idle."""
    with lacking(short_dir, lib.HFC_STREAM_MEM_OPS, respawns=0, stream_limit_ms=50.0) as bench:
        bench.fake.freeze(on=True)
        with pytest.raises(SubmitFailed, match="the session is lost"):
            bench.submit(Ask(0, 1))
        bench.fake.freeze(on=False)
        marker = bench.stream.marker()
        assert bench.stream.wait(marker, PATIENCE_S)

        def ended() -> bool:
            bench.fake.freeze(on=True)
            assert bench.submit(Ask(0, 1)).skip is Skip.NO_SESSION
            bench.fake.freeze(on=False)
            return not bench.shim._pool.unreaped

        until(ended, "the lost session is ended")


@pytest.mark.parametrize("attribute", LACKS)
def test_a_copy_that_fails(short_dir: Path, attribute: int) -> None:
    """Whatever the driver calls it, it is no batch that does not fit and no capture: the session is lost, and the error says so."""
    with lacking(short_dir, attribute) as bench:
        session = drafting(bench)
        bench.driver.fail_nth(2, 900, function="cuMemcpyDtoHAsync")
        with pytest.raises(SubmitFailed, match="the session is lost") as failed:
            bench.submit(Ask(0, 1))
        assert "graph" not in str(failed.value)
        bench.driver.fail_nth(0, 0)
        assert drafting(bench) != session


def drafting(bench: Bench) -> int:
    """Step until a round ends OK; return its session."""
    found: list[int] = []

    def ok() -> bool:
        ticket = bench.submit(Ask(0, 1))
        if ticket.ref and bench.shim.verdict(ticket.ref) is Verdict.OK:
            found.append(ticket.ref.session)
        return bool(found)

    until(ok, "a round that ends OK")
    return found[0]
