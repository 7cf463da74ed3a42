# SPDX-License-Identifier: Apache-2.0
"""
An engine with its memory on a GPU, for tests: torch's tensors, a daemon, and a worker that looks at every byte.

Importing it skips the module that does where there is no GPU or no torch.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from engine_hand import PATIENCE_S, until
from proxyd_harness import Daemon
from whole_rows import checksum_of, drafts_of

from dsv41_rehearse.stack import Stack
from engine_shim import CudaDriver, CudaStream, DriverFault, Mode, RoundRef, Shim, ShimOptions, Ticket
from hostflag.messages import EngineIdentity, Geometry
from hostflag.verdicts import Verdict


def _need_gpu() -> CudaDriver:
    try:
        driver = CudaDriver()
        devices = driver.devices
    except DriverFault as fault:
        pytest.skip(f"no GPU here: {fault}", allow_module_level=True)
    if devices == 0:
        pytest.skip("no GPU here: the CUDA driver sees no device", allow_module_level=True)
    driver.use_primary(0)
    return driver


DRIVER: Final = _need_gpu()
torch: Any = pytest.importorskip("torch", reason="needs torch, whose tensors the rows come from")
# In time for `python -m refworker --drafter whole_rows:WholeRows` in other processes.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

GEOMETRY: Final = Geometry(row_bytes=30_720, drafts=5, vocab=129_280)
POOL: Final = 512  # rows in device memory; a round takes some of them, wherever they lie
SOURCES: Final = 3
WIDTH: Final = GEOMETRY.row_bytes // SOURCES
LAST: Final = 100  # last_sampled of slot s is LAST + s


@dataclass(frozen=True)
class Ask:
    """A request of a step: rows [first, first + rows) of the pool."""

    slot: int
    first: int
    rows: int


class Tensors:
    """The memory of an engine: a pool of random rows in three sources, positions that ascend along it, and what a batch needs."""

    def __init__(self, seed: int = 1) -> None:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        self.rows = torch.randint(
            0, 256, (POOL, GEOMETRY.row_bytes), dtype=torch.uint8, device="cuda", generator=generator
        )
        self.sources = [self.rows[:, i * WIDTH : (i + 1) * WIDTH].contiguous() for i in range(SOURCES)]
        self.positions = torch.arange(1000, 1000 + POOL, dtype=torch.int64, device="cuda")
        self.tokens = torch.randint(0, GEOMETRY.vocab, (POOL,), dtype=torch.int32, device="cuda", generator=generator)
        self.sampled = torch.ones(GEOMETRY.max_requests, dtype=torch.int32, device="cuda")
        self.rejected = torch.zeros(GEOMETRY.max_requests, dtype=torch.int32, device="cuda")
        self.last = torch.arange(LAST, LAST + GEOMETRY.state_slots, dtype=torch.int64, device="cuda")
        self.following = torch.zeros(GEOMETRY.state_slots, dtype=torch.int32, device="cuda")
        self.drafts = torch.full((GEOMETRY.max_requests, GEOMETRY.drafts), -1, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        self._host = (self.rows.cpu().numpy(), self.positions.cpu().numpy(), self.tokens.cpu().numpy())
        self._known: dict[tuple[int, int], int] = {}

    def expected(self, ask: Ask) -> list[int]:
        """Return the drafts of a request, from the engine's own copy of what it means to send."""
        key = (ask.first, ask.rows)
        if key not in self._known:
            rows, positions, tokens = (one[ask.first : ask.first + ask.rows].tobytes() for one in self._host)
            self._known[key] = checksum_of(positions, tokens, rows)
        return drafts_of(self._known[key], LAST + ask.slot, GEOMETRY.drafts, GEOMETRY.vocab)


@dataclass
class Engine:
    """Submits steps to a shim on a stream of torch's. ``wrong``: drafts that were used under OK and were not the round's own."""

    shim: Shim
    stream: CudaStream
    torch_stream: Any
    tensors: Tensors
    wrong: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.batch = self.shim.batch()
        t = self.tensors
        self.batch.set_sources(t.sources)
        self.batch.set_arrays(
            positions=t.positions, tokens=t.tokens, num_sampled=t.sampled, num_rejected=t.rejected, last_sampled=t.last,
            next_prefill=t.following, drafts_out=t.drafts,
        )  # fmt: skip

    def submit(self, asks: Sequence[Ask]) -> Ticket:
        """Enqueue a step."""
        for index, ask in enumerate(asks):
            self.batch.set_request(index, slot=ask.slot, generation=1, first_row=ask.first, rows=ask.rows, draft=True)
        self.batch.n_requests = len(asks)
        return self.shim.submit(self.batch)

    def drained(self, timeout_s: float = PATIENCE_S) -> bool:
        """Wait until the stream is past everything; False where it does not get there."""
        return self.stream.wait(self.stream.marker(), timeout_s)

    def step(self, asks: Sequence[Ask]) -> Verdict | None:
        """Do a whole step and book it. None: it was target-only."""
        ticket = self.submit(asks)
        with torch.cuda.stream(self.torch_stream):
            drafts = self.tensors.drafts[: len(asks)].clone()
        self.torch_stream.synchronize()
        return self.book(ticket.ref, asks, drafts.tolist())

    def book(self, ref: RoundRef | None, asks: Sequence[Ask], drafts: list[list[int]]) -> Verdict | None:
        """Hold a step's drafts against what they should be under its verdict; they are legal ids under any."""
        verdict = None if ref is None else self.shim.verdict(ref)
        name = "NONE" if verdict is None else verdict.name
        self.verdicts[name] = self.verdicts.get(name, 0) + 1
        assert all(0 <= one < GEOMETRY.vocab for row in drafts for one in row), (name, drafts)
        if verdict is Verdict.OK:
            self.wrong += drafts != [self.tensors.expected(ask) for ask in asks]
        return verdict

    def ok(self, asks: Sequence[Ask] = (Ask(0, 0, 1),)) -> None:
        """Step until a round ends OK."""
        until(lambda: self.step(asks) is Verdict.OK, f"a round that ends OK: {self.shim.status()}")


@contextlib.contextmanager
def worker(*, delay_ms: float = 0.0) -> Iterator[str]:
    """Give the endpoint of a worker that looks at every byte."""
    with Stack() as stack:
        yield stack.start_worker("whole_rows:WholeRows", delay_ms=delay_ms)


@contextlib.contextmanager
def daemon(directory: Path, endpoint: str, *flags: str, program: Sequence[str] = ("proxyd",)) -> Iterator[Daemon]:
    """Give a daemon with that worker."""
    with Daemon(directory, *flags, worker=endpoint, program=program) as process:
        yield process


@contextlib.contextmanager
def engine(
    path: Path, *, mode: Mode = Mode.ASYNC, driver: CudaDriver | None = None, **options: Any
) -> Iterator[Engine]:
    """Give an engine whose daemon is, or will be, at ``path``."""
    settings: dict[str, Any] = {
        "respawns": 1000, "deadline_ms": 2_000.0, "backoff_ms": (5.0, 50.0), "start_timeout_s": 30.0, "handshake_s": 10.0,
    }  # fmt: skip
    settings.update(options)
    torch_stream = torch.cuda.Stream()
    with CudaStream(torch_stream, driver=driver or CudaDriver()) as stream:
        shim = Shim(
            path, geometry=GEOMETRY, model="test", engine=EngineIdentity(name="gpu-test", pid=os.getpid()), stream=stream,
            mode=mode, options=ShimOptions(**settings),
        )  # fmt: skip
        try:
            yield Engine(shim, stream, torch_stream, Tensors())
        finally:
            (driver or stream.driver).fail_nth(0, 0)
            shim.close(PATIENCE_S)


def python(code: str, **variables: str) -> str:
    """Return what a Python process of its own prints."""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S * 2,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()
