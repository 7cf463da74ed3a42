# SPDX-License-Identifier: Apache-2.0
"""The bench measures what it says; whether its goals are met is for a quiet machine to show."""

from __future__ import annotations

from pathlib import Path

import pytest

from rehearse_support import run, wait_until

from dsv41_rehearse.bench_rest import Idle, Pace
from dsv41_rehearse.bench_scraper import Scraper
from dsv41_rehearse.bench_show import Goal, goals
from dsv41_rehearse.samples import Samples, Spread


SIZES = {"64KiB", "512KiB"}
TIMES = {
    "raw_us", "round_us", "round_scraped_us", "round_scraped_elsewhere_us", "own_us", "send_us", "submit_us",
}  # fmt: skip


def test_a_short_bench(tmp_path: Path) -> None:
    report = run(tmp_path, "bench", "--blocks", "2", "--block-s", "0.3", "--idle-s", "0.5", "--pace-s", "1")
    assert {"commit", "machine", "command", "seed"} <= set(report)
    for name in TIMES:
        assert set(report[name]) == SIZES
        for spread in report[name].values():
            assert 0 < spread["p50"] <= spread["p99"] <= spread["max"]
            assert spread["n"] > 50
    for medians in report["block_medians_us"].values():
        assert {kind: len(blocks) for kind, blocks in medians.items()} == {
            "raw": 2, "round": 2, "scraped": 2, "elsewhere": 2,
        }  # fmt: skip
    assert report["pace"]["rounds"] > 10
    assert report["idle"]["one_session"] > 0
    assert report["fetches"]["scraped"] > 0
    assert report["fetches"]["elsewhere"] > 0
    assert len(report["goals"]) == 2 * 5 + 3


def test_a_short_bench_of_the_encrypted_link(tmp_path: Path) -> None:
    report = run(tmp_path, "bench", "curve", "--blocks", "2", "--block-s", "0.3")
    for link in ("plain", "curve"):
        assert set(report[f"{link}_round_us"]) == SIZES
        assert all(spread["n"] > 20 for spread in report[f"{link}_round_us"].values())
        assert all(len(medians) == 2 for medians in report["block_medians_us"][link].values())
    assert report["failed_rounds"] == 0
    assert set(report["curve_extra_us"]) == SIZES


def spreads(p50: float, p99: float) -> dict[str, dict[str, Spread]]:
    spread = Spread(100, p50, p99, p99, p50)
    return {name: {"64KiB": spread} for name in TIMES}


@pytest.mark.parametrize(("value", "met"), [(5.0, True), (500.0, False)])
def test_goals_compare_what_was_measured(value: float, met: bool) -> None:
    nothing = Samples().spread()
    found = goals(spreads(value, value), Idle(value, value, 1.0), Pace(value, nothing, nothing, 0, 0))
    ratios = [goal for goal in found if "/" in goal.name]
    assert all(goal.measured == 1.0 and goal.met for goal in ratios)
    own = next(goal for goal in found if goal.name.startswith("own"))
    assert own.met is met


def test_a_goal_without_a_measurement_is_not_met() -> None:
    assert not Goal("nothing", 1.0, None).met


def test_the_scraper_scrapes_only_while_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("hello")
    scraper = Scraper()
    try:
        scraper.scrape((tmp_path / "page").as_uri())
        fetched = 0

        def some() -> bool:
            nonlocal fetched
            fetched += scraper.scrape((tmp_path / "page").as_uri())
            return fetched > 3

        wait_until(some)
        scraper.scrape(None)
        assert scraper.scrape(None) == 0
    finally:
        scraper.close()


def test_percentiles() -> None:
    samples = Samples()
    assert samples.spread().p50 is None
    assert str(samples.spread()) == "no samples"
    for value in range(101):
        samples.add(float(value))
    assert samples.spread(2.0) == Spread(101, 50.0, 99.0, 100.0, 50.0, 2.0)
    assert samples.percentile(50) == 50.0
