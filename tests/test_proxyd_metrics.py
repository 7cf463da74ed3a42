# SPDX-License-Identifier: Apache-2.0
"""/metrics: what it holds, that it adds up over sessions that ended, and that names follow the rules."""

from __future__ import annotations

import errno
import re
import urllib.error
import urllib.request

from pathlib import Path

import pytest

from prometheus_client.parser import text_string_to_metric_families
from proxyd_engine import Engine
from proxyd_harness import PATIENCE_S, Daemon, until

from hostflag.verdicts import Verdict
from hostflag.version import VERSION
from proxyd._daemon import lib
from proxyd.sessions.tally import Tally
from proxyd.views import metrics


def text_of(page_of: metrics.Snapshot) -> str:
    content_type, body, _status = metrics.page(lambda: page_of)()
    assert content_type.startswith("text/plain")
    return body.decode()


def test_names_follow_the_rules_and_every_metric_has_help() -> None:
    families = list(text_string_to_metric_families(text_of(metrics.Snapshot())))
    assert len(families) > 20
    for family in families:
        assert re.fullmatch(r"dsv41_proxyd_[a-z0-9_]+", family.name)
        assert family.documentation.endswith(".")
        assert not family.name.endswith(("_ms", "_us", "_ns", "_count", "_created"))
        assert (family.type == "histogram") == ("_seconds" in family.name and "start_time" not in family.name)
    assert len({family.name for family in families}) == len(families)


def test_a_scrape_is_small_and_has_no_created_series() -> None:
    text = text_of(metrics.Snapshot())
    assert "_created" not in text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(samples) < 200


def test_without_a_descriptor_for_proc_all_else_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> dict[str, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(metrics, "resident_bytes", full)
    text = text_of(metrics.Snapshot())
    assert "resident_memory_bytes{" not in text
    assert "dsv41_proxyd_start_time_seconds" in text


def test_histograms_are_cumulative_and_end_at_the_count() -> None:
    tally = Tally()
    view = tally.histograms[lib.HFD_HISTOGRAM_ROUND]
    for index in range(lib.HFD_BUCKETS):
        view.bucket[index] = 1
    view.count = lib.HFD_BUCKETS
    view.sum_ns = 1_500_000_000
    families = text_string_to_metric_families(text_of(metrics.Snapshot(tally=tally)))
    round_seconds = next(family for family in families if family.name == "dsv41_proxyd_round_seconds")
    buckets = [(s.labels["le"], s.value) for s in round_seconds.samples if s.name.endswith("_bucket")]
    bounds = [float(bound) for bound, _ in buckets]
    assert bounds == sorted(bounds)
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    assert buckets[-1] == ("+Inf", lib.HFD_BUCKETS)
    # The bucket of a bound counts everything up to it, the buckets of C that are left out included.
    for bound, count in buckets[:-1]:
        assert count == sum(lib.hfd_bucket_ns(i) <= float(bound) * 1e9 + 0.5 for i in range(lib.HFD_BUCKETS))
    assert next(s.value for s in round_seconds.samples if s.name.endswith("_sum")) == 1.5


def test_an_engines_name_cannot_break_the_page() -> None:
    name = 'a"b\\c{}\n# HELP'
    snapshot = metrics.Snapshot(workers={(name, 3): True})
    families = text_string_to_metric_families(text_of(snapshot))
    sample = next(s for family in families for s in family.samples if s.name == "dsv41_proxyd_worker_up")
    assert (sample.labels, sample.value) == ({"engine": name, "rank": "3"}, 1)


def test_counts_outlive_their_session(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon:
        rounds = 'dsv41_proxyd_rounds_total{verdict="disconnected"}'
        assert daemon.scrape()[rounds] == 0
        for wanted, name in ((3, "one"), (6, "two")):
            with Engine(daemon.path) as engine:
                engine.ready(name)
                assert {engine.round(t) for t in (1, 2, 3)} == {Verdict.DISCONNECTED}
                # A round is booked behind its release.
                until(lambda wanted=wanted: daemon.scrape()[rounds] == wanted, "the rounds are booked")  # type: ignore[misc]
                assert daemon.scrape()[f'dsv41_proxyd_worker_up{{engine="{name}",rank="0"}}'] == 0
            until(lambda: daemon.scrape()['dsv41_proxyd_sessions{state="running"}'] == 0, "the session is over")
            assert daemon.scrape()[rounds] == wanted
        samples = daemon.scrape()
        assert samples["dsv41_proxyd_sessions_started_total"] == 2
        assert samples['dsv41_proxyd_handshakes_total{outcome="ready"}'] == 2
        assert samples["dsv41_proxyd_gather_seconds_count"] == 6
        assert any(f'version="{VERSION}"' in name for name in samples if "build_info" in name)
        assert samples['dsv41_proxyd_resident_memory_bytes{kind="anon"}'] > 1 << 20


def test_pages(short_dir: Path) -> None:
    with Daemon(short_dir) as daemon:
        base = daemon.said("ready")[0]["metrics"].removesuffix("/metrics")
        for path in ("/", "/metrics"):
            with urllib.request.urlopen(base + path, timeout=PATIENCE_S) as response:
                assert response.status == 200
        with pytest.raises(urllib.error.HTTPError, match="404") as missing:
            urllib.request.urlopen(base + "/favicon.ico", timeout=PATIENCE_S)
        missing.value.close()


def test_metrics_can_be_off(short_dir: Path) -> None:
    with Daemon(short_dir, "--metrics=off") as daemon:
        assert daemon.said("ready")[0]["metrics"] is None
        with Engine(daemon.path) as engine:
            engine.ready()
