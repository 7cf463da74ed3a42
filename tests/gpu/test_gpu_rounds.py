# SPDX-License-Identifier: Apache-2.0
"""Rounds through a GPU's stream, daemon and worker: every byte that arrives is the one that was meant, both ways."""

from __future__ import annotations

import random

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_harness import GEOMETRY, POOL, SOURCES, WIDTH, Ask, Engine, Tensors, daemon, engine, torch, worker

from engine_shim import CudaStream, StreamRefused
from hostflag.verdicts import Verdict


ROUNDS = 300


@pytest.fixture
def running(short_dir: Path) -> Iterator[Engine]:
    with (
        worker() as endpoint,
        daemon(short_dir, endpoint, "--network-timeout-ms=1500"),
        engine(short_dir / "e.sock") as one,
    ):
        one.ok()
        yield one


def asks(rng: random.Random, most: int = GEOMETRY.max_requests) -> list[Ask]:
    """Return a step of some requests with some rows each, anywhere in the pool."""
    slots = rng.sample(range(GEOMETRY.state_slots), rng.randint(1, most))
    return [Ask(slot, rng.randrange(POOL - 6), rng.randint(1, 6)) for slot in slots]


def all_exact(one: Engine, rounds: int, most: int = GEOMETRY.max_requests) -> None:
    rng = random.Random(7)
    for _ in range(rounds):
        assert one.step(asks(rng, most)) is Verdict.OK
    assert one.wrong == 0


def test_every_row_and_every_draft_is_exact(running: Engine) -> None:
    all_exact(running, ROUNDS)


def test_rows_side_by_side_in_one_tensor(running: Engine) -> None:
    """Sources are views: their pitch is that of the tensor they are part of."""
    rows = running.tensors.rows
    running.batch.set_sources([rows[:, i * WIDTH : (i + 1) * WIDTH] for i in range(SOURCES)])
    all_exact(running, 50)


def test_bfloat16_tensors(running: Engine) -> None:
    running.batch.set_sources([source.view(torch.bfloat16) for source in running.tensors.sources])
    all_exact(running, 50)


def test_raw_pointers(running: Engine) -> None:
    t = running.tensors
    running.batch.set_sources([(source.data_ptr(), WIDTH, WIDTH) for source in t.sources])
    running.batch.set_arrays(
        positions=t.positions.data_ptr(), tokens=t.tokens.data_ptr(), num_sampled=t.sampled.data_ptr(),
        num_rejected=t.rejected.data_ptr(), last_sampled=t.last.data_ptr(), next_prefill=t.following.data_ptr(),
        drafts_out=t.drafts.data_ptr(),
    )  # fmt: skip
    all_exact(running, 50)


def test_cupy_arrays(running: Engine) -> None:
    """By dlpack, as they are; torch's tensors are only where their memory comes from."""
    cupy = pytest.importorskip("cupy")
    t = running.tensors
    running.batch.set_sources([cupy.from_dlpack(source) for source in t.sources])
    all_exact(running, 50)


def test_a_cupy_stream(short_dir: Path) -> None:
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    with CudaStream(stream) as ours:
        assert ours.handle == stream.ptr


def test_rows_are_those_that_the_stream_had(running: Engine) -> None:
    """They are written by the stream just before the submit and overwritten by it right behind: nothing waits between."""
    others = [Tensors(seed) for seed in (11, 12, 13)]
    t = running.tensors
    seen = []
    rng = random.Random(3)
    for index in range(120):
        tensors, step = others[index % len(others)], asks(rng, most=3)
        with torch.cuda.stream(running.torch_stream):
            for to, source in zip(t.sources, tensors.sources, strict=True):
                to.copy_(source)
            t.tokens.copy_(tensors.tokens)
            ticket = running.submit(step)
            drafts = t.drafts[: len(step)].clone()
            for to in t.sources:
                to.zero_()
            t.drafts.fill_(-1)
        seen.append((ticket.ref, tensors, step, drafts))
        if len(seen) == 4:
            check(running, seen)
            seen.clear()
    check(running, seen)


def check(one: Engine, seen: list[tuple[Any, Tensors, list[Ask], Any]]) -> None:
    """Hold steps that were in flight together against what they should be."""
    one.torch_stream.synchronize()
    for ref, tensors, step, drafts in seen:
        assert ref is not None
        assert one.shim.verdict(ref) is Verdict.OK
        assert drafts.tolist() == [tensors.expected(ask) for ask in step]


def test_rejected_rows_never_leave(running: Engine) -> None:
    """The GPU alone knows how many were rejected when the round is enqueued."""
    t = running.tensors
    with torch.cuda.stream(running.torch_stream):
        t.rejected.fill_(2)
        ticket = running.submit([Ask(0, 10, 6), Ask(1, 40, 5)])
        t.rejected.zero_()
        drafts = t.drafts[:2].clone()
    running.torch_stream.synchronize()
    assert ticket.ref is not None
    assert running.shim.verdict(ticket.ref) is Verdict.OK
    assert drafts.tolist() == [t.expected(Ask(0, 10, 4)), t.expected(Ask(1, 40, 3))]


def test_the_null_stream_is_refused() -> None:
    with pytest.raises(StreamRefused, match="legacy null stream"):
        CudaStream(torch.cuda.default_stream())


def test_a_capturing_stream_is_refused(running: Engine) -> None:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    values = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        values.add_(1)
        with pytest.raises(StreamRefused, match="captured"):
            CudaStream(stream)
    all_exact(running, 5)
