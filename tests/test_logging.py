# SPDX-License-Identifier: Apache-2.0
"""Logs: JSON off a terminal, and quiet under a flood of one event."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import structlog

from hostflag.logging import RateLimit


def events(limit: RateLimit, lines: list[dict[str, object]]) -> list[dict[str, object]]:
    passed = []
    for line in lines:
        try:
            passed.append(dict(limit(None, "info", dict(line))))
        except structlog.DropEvent:
            continue
    return passed


def test_only_events_that_ask_for_it_are_limited() -> None:
    lines: list[dict[str, object]] = [{"event": "opened"}] * 3
    assert events(RateLimit(), lines) == lines


def test_a_repeated_event_passes_once_and_counts_the_rest() -> None:
    flood: list[dict[str, object]] = [{"event": "bad message", "rate_limited": True}] * 5
    assert events(RateLimit(interval_s=60), flood) == [{"event": "bad message"}]

    limit = RateLimit(interval_s=0)
    assert len(events(limit, flood)) == 5


def test_sources_are_told_apart_by_their_key() -> None:
    lines: list[dict[str, object]] = [{"event": "bad", "rate_limited": True, "rate_key": key} for key in "abab"]
    assert len(events(RateLimit(interval_s=60), lines)) == 2


def test_a_burst_passes_and_no_more() -> None:
    flood: list[dict[str, object]] = [{"event": "session over", "rate_limited": True, "rate_burst": 3}] * 9
    assert events(RateLimit(interval_s=60), flood) == [{"event": "session over"}] * 3
    assert len(events(RateLimit(interval_s=0), flood)) == 9
    assert events(RateLimit(), [{"event": "x", "rate_burst": 3, "rate_key": "a"}] * 9) == [{"event": "x"}] * 9


def test_what_was_held_back_is_said_on_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("hostflag.logging.time.monotonic", lambda: now[0])
    limit = RateLimit(interval_s=10)
    line: dict[str, object] = {"event": "bad", "rate_limited": True}
    events(limit, [line] * 4)
    now[0] = 111.0
    assert events(limit, [line]) == [{"event": "bad", "suppressed": 3}]


def test_keys_from_peers_do_not_grow_without_bound() -> None:
    limit = RateLimit(interval_s=60, capacity=10)
    events(limit, [{"event": "bad", "rate_limited": True, "rate_key": str(i)} for i in range(1000)])
    assert limit.tracked <= 10


def test_off_a_terminal_every_line_is_json_on_stderr() -> None:
    code = (
        "import structlog, hostflag.logging as l; l.configure('info', 'auto'); log = structlog.get_logger();"
        "log.debug('quiet'); log.info('ready', pid=1); log.error('broken', reason='x')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]

    assert done.stdout == ""
    assert [line["event"] for line in lines] == ["ready", "broken"]
    assert lines[0]["pid"] == 1
    assert lines[1]["level"] == "error"
