# SPDX-License-Identifier: Apache-2.0
"""The histogram's buckets, which /metrics and `bench` read."""

from __future__ import annotations

import pytest

from fake_engine import Ask
from fake_worker import fake_worker
from hypothesis import given
from hypothesis import strategies as st
from loop_harness import running

from hostflag.verdicts import Verdict
from proxyd._daemon import ffi, lib


LAST = lib.HFD_BUCKETS - 1


def test_bounds_grow_two_an_octave_from_a_microsecond() -> None:
    bounds = [lib.hfd_bucket_ns(bucket) for bucket in range(LAST)]
    assert bounds[:5] == [1000, 1500, 2000, 3000, 4000]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == 16_777_216_000
    assert lib.hfd_bucket_ns(LAST) == lib.hfd_bucket_ns(LAST + 1) == (1 << 64) - 1


@given(st.lists(st.integers(0, LAST), min_size=1), st.floats(0, 1))
def test_a_quantile_is_the_bound_of_the_bucket_it_falls_into(buckets: list[int], share: float) -> None:
    view = ffi.new("struct hfd_histogram_view *", {"count": len(buckets), "max_ns": (1 << 64) - 1})
    for bucket in buckets:
        view.bucket[bucket] += 1
    ranked = sorted(buckets)
    index = max(0, -int(-share * len(ranked) // 1) - 1)
    assert lib.hfd_histogram_quantile(view, share) == lib.hfd_bucket_ns(ranked[index])


def test_a_quantile_is_never_above_the_maximum_and_0_where_nothing_was_counted() -> None:
    view = ffi.new("struct hfd_histogram_view *")
    assert lib.hfd_histogram_quantile(view, 0.5) == 0
    view.count, view.max_ns = 1, 1234
    view.bucket[1] = 1
    assert lib.hfd_histogram_quantile(view, 0.99) == 1234


def test_a_round_is_counted_in_the_buckets_that_hold_its_times() -> None:
    with fake_worker() as worker, running(worker) as loop:
        loop.up(worker)
        loop.engine.begin(1, Ask())
        worker.answer(worker.expect_round())
        assert loop.engine.finish(1) is Verdict.OK
        timing = loop.engine.timing(1)
        parts = {
            lib.HFD_HISTOGRAM_NETWORK: timing.replied_ns - timing.send_ns,
            lib.HFD_HISTOGRAM_SEND: timing.sent_ns - timing.send_ns,
        }
        for number, took in parts.items():
            view = loop.loop.histogram(number)
            bucket = next(bucket for bucket in range(lib.HFD_BUCKETS) if view.bucket[bucket])
            assert (view.count, view.sum_ns, view.max_ns) == (1, took, took)
            assert took <= lib.hfd_bucket_ns(bucket)
            assert bucket == 0 or took > lib.hfd_bucket_ns(bucket - 1)
        whole, own = (loop.loop.histogram(n).sum_ns for n in (lib.HFD_HISTOGRAM_ROUND, lib.HFD_HISTOGRAM_OWN))
        assert whole == own + parts[lib.HFD_HISTOGRAM_NETWORK]


def test_a_number_that_is_no_histogram_is_refused() -> None:
    with running() as loop, pytest.raises(ValueError, match="no histogram"):
        loop.loop.histogram(lib.HFD_HISTOGRAM_MAX)
