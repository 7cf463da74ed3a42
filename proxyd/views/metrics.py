# SPDX-License-Identifier: Apache-2.0
"""
/metrics: every metric's name, help and source. Values are read when somebody asks; between two scrapes nothing is done.

No label takes a value that grows without bound: verdicts, outcomes and drops are fixed sets, engines are those connected now.
"""

from __future__ import annotations

import contextlib
import time

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hostflag.geometry import layout_hash
from hostflag.verdicts import Verdict
from hostflag.version import VERSION
from proxyd._daemon import lib
from proxyd.sessions.roundloop import BreakerState
from proxyd.sessions.tally import Tally
from proxyd.views.http import Content


PREFIX: Final = "dsv41_proxyd_"

# name, help, field of struct hfd_counters
PLAIN_COUNTERS: Final = (
    ("context_only_rounds", "Rounds that only shipped rows; counted in rounds too.", "context_only"),
    ("outvoted_rounds", "Rounds that an engine's watchdog decided before the daemon did.", "outvoted"),
    ("bad_gathers", "Rounds that were not sent since what was gathered did not fit.", "bad_gathers"),
    ("rows_sent", "Valid rows handed to the transport.", "rows_sent"),
    ("rows_rejected", "Rows of gathered rounds that verification had rejected.", "rows_rejected"),
    ("bad_replies", "Replies that did not fit the round that waited for them.", "bad_replies"),
    ("worker_extra_parts", "Surplus message parts from workers, thrown away.", "extra_parts"),
    ("link_ups", "Sessions that a worker opened.", "link_ups"),
    ("link_downs", "Links that were up and were lost.", "link_downs"),
    ("link_resets", "Links that the round loop gave back to have a new one.", "links_wanted"),
    ("links_barred", "Connections to a worker whose ZMQ handshake failed: wrong keys, or no worker.", "links_barred"),
    ("opens", "OPEN messages sent.", "opens"),
    ("open_refusals", "OPEN messages that a worker refused.", "refusals"),
    ("unknown_sessions", "Replies of workers that did not know the session.", "unknown_sessions"),
    ("worker_changes", "Sessions that were opened by another worker than the one before.", "worker_changes"),
    ("breaker_opens", "Times that a circuit breaker opened.", "breaker_opens"),
    ("breaker_probes", "Rounds that a circuit breaker let through to try the worker.", "breaker_probes"),
    ("pings", "PING messages sent.", "pings"),
    ("pongs", "PONG messages received.", "pongs"),
)
DROPS: Final = {
    "stale": lib.HFD_DROP_STALE,
    "session": lib.HFD_DROP_SESSION,
    "malformed": lib.HFD_DROP_MALFORMED,
    "type": lib.HFD_DROP_TYPE,
}
# name, help, enum hfd_histogram_id, first and last bucket in s (those between are powers of two, in us)
HISTOGRAMS: Final = (
    ("round_seconds", "From seen to released, rounds that got drafts.", lib.HFD_HISTOGRAM_ROUND, 64e-6, 2.2),
    (
        "network_seconds",
        "Of these, from the hand-over to the transport to the reply.",
        lib.HFD_HISTOGRAM_NETWORK,
        64e-6,
        2.2,
    ),
    ("send_seconds", "Of these, in the transport's send.", lib.HFD_HISTOGRAM_SEND, 4e-6, 0.02),
    ("own_seconds", "Of these, the daemon's own share.", lib.HFD_HISTOGRAM_OWN, 1e-6, 0.02),
    ("wakeup_seconds", "From gathered to seen.", lib.HFD_HISTOGRAM_WAKEUP, 1e-6, 0.02),
    ("gather_seconds", "From submitted to gathered.", lib.HFD_HISTOGRAM_GATHER, 64e-6, 2.2),
)
_BOUNDS_S: Final = [lib.hfd_bucket_ns(index) / 1e9 for index in range(lib.HFD_BUCKETS - 1)]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """
    What the control plane knows at one moment.

    ``workers``: (engine, rank) -> whether its worker is up, for the sessions that run but self-tests', ``breakers`` its breaker. ``handshakes``, ``reloads``: how many by outcome.
    """

    tally: Tally = field(default_factory=Tally)
    workers: Mapping[tuple[str, int], bool] = field(default_factory=dict)
    breakers: Mapping[tuple[str, int], BreakerState] = field(default_factory=dict)
    worker_moves: int = 0
    ending: int = 0
    sessions_started: int = 0
    handshakes: Mapping[str, int] = field(default_factory=dict)
    connections: int = 0
    reloads: Mapping[str, int] = field(default_factory=dict)


class ProxydCollector(Collector):
    """Makes metric families of what ``snapshot`` returns at a scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._started = time.time()

    def collect(self) -> Iterator[Metric]:
        return self._families(self._snapshot())

    def describe(self) -> Iterator[Metric]:
        """Yield the families for their names: the registry asks at registration, when there is nothing to read yet."""
        return self._families(Snapshot())

    def _families(self, snapshot: Snapshot) -> Iterator[Metric]:
        yield from _counters(snapshot.tally.counters)
        yield from _histograms(snapshot.tally)
        yield from _sessions(snapshot)
        yield _by_outcome("reloads", "Reloads of the configuration by outcome.", snapshot.reloads)
        yield from _process(self._started)


def page(snapshot: Callable[[], Snapshot]) -> Callable[[], Content]:
    """Return the function that makes the /metrics page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ProxydCollector(snapshot))
    return lambda: Content(CONTENT_TYPE_LATEST, generate_latest(registry))


def _counters(counters: Any) -> Iterator[Metric]:
    rounds = CounterMetricFamily(PREFIX + "rounds", "Rounds by verdict.", labels=["verdict"])
    for verdict in Verdict:
        if verdict is not Verdict.OPEN:
            rounds.add_metric([verdict.name.lower()], counters.rounds[verdict])
    yield rounds
    dropped = CounterMetricFamily(PREFIX + "worker_dropped", "Messages from workers, dropped.", labels=["reason"])
    for reason, index in DROPS.items():
        dropped.add_metric([reason], counters.dropped[index])
    yield dropped
    for what in ("messages", "bytes"):
        family = CounterMetricFamily(
            f"{PREFIX}worker_{what}", f"To (out) and from (in) workers: {what}.", labels=["way"]
        )
        for way in ("out", "in"):
            family.add_metric([way], getattr(counters, f"{what}_{way}"))
        yield family
    for name, text, source in PLAIN_COUNTERS:
        yield CounterMetricFamily(PREFIX + name, text, value=getattr(counters, source))


def _histograms(tally: Tally) -> Iterator[Metric]:
    for name, text, number, first_s, last_s in HISTOGRAMS:
        view = tally.histograms[number]
        below = 0
        buckets = []
        for index, bound_s in enumerate(_BOUNDS_S):
            below += view.bucket[index]
            # Every other of C's buckets, within the range that this duration can have: few series, the same sums.
            if index % 2 == 0 and first_s <= bound_s <= last_s:
                buckets.append((repr(bound_s), below))
        buckets.append(("+Inf", view.count))
        yield HistogramMetricFamily(PREFIX + name, text, buckets=buckets, sum_value=view.sum_ns / 1e9)


def _sessions(snapshot: Snapshot) -> Iterator[Metric]:
    sessions = GaugeMetricFamily(PREFIX + "sessions", "Engine sessions, without self-tests.", labels=["state"])
    sessions.add_metric(["running"], len(snapshot.workers))
    sessions.add_metric(["ending"], snapshot.ending)
    yield sessions
    up = GaugeMetricFamily(PREFIX + "worker_up", "1 where the session's worker is up.", labels=["engine", "rank"])
    for (engine, rank), is_up in snapshot.workers.items():
        up.add_metric([engine, str(rank)], is_up)
    yield up
    breaker = GaugeMetricFamily(
        PREFIX + "breaker_open", "1 where the session's circuit breaker is not closed.", labels=["engine", "rank"]
    )
    for (engine, rank), state in snapshot.breakers.items():
        breaker.add_metric([engine, str(rank)], state is not BreakerState.CLOSED)
    yield breaker
    yield CounterMetricFamily(
        PREFIX + "worker_moves", "Changes of the worker endpoint in use.", value=snapshot.worker_moves
    )
    yield CounterMetricFamily(
        PREFIX + "sessions_started", "Engine sessions since the start.", value=snapshot.sessions_started
    )
    yield _by_outcome("handshakes", "Connections of engines by outcome.", snapshot.handshakes)
    yield GaugeMetricFamily(
        PREFIX + "handshaking", "Connections of engines that are not sessions yet.", snapshot.connections
    )


def _by_outcome(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=["outcome"])
    for outcome, count in sorted(counts.items()):
        family.add_metric([outcome], count)
    return family


def _process(started: float) -> Iterator[Metric]:
    build = GaugeMetricFamily(PREFIX + "build_info", "This build; always 1.", labels=["version", "layout_hash"])
    build.add_metric([VERSION, layout_hash()], 1)
    yield build
    yield GaugeMetricFamily(PREFIX + "start_time_seconds", "When the daemon started, Unix time.", started)
    memory = GaugeMetricFamily(PREFIX + "resident_memory_bytes", "Resident memory by kind.", labels=["kind"])
    with contextlib.suppress(OSError):  # no descriptor is left for /proc: all else is worth having then
        for kind, size in resident_bytes().items():
            memory.add_metric([kind], size)
    yield memory


def resident_bytes(status: Path = Path("/proc/self/status")) -> dict[str, int]:
    """Return a process's resident bytes by kind: ``anon`` and ``file`` are its own, ``shmem`` the regions of engines."""
    sizes = {}
    for line in status.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssFile", "RssShmem"):
            sizes[name[3:].lower()] = int(value.split()[0]) * 1024
    return sizes
