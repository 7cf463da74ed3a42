# SPDX-License-Identifier: Apache-2.0
"""
A scraper in a process of its own: fetches a URL 20 times a second while it is told to.

Lines on standard input: a URL starts, an empty line stops, the end ends it. It answers each line with one of its own.
"""

from __future__ import annotations

import select
import subprocess
import sys
import urllib.request

from typing import Final


PERIOD_S: Final = 0.05
FETCH_S: Final = 5.0


class Scraper:
    """The other end: starts the process, tells it what to fetch. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dsv41_rehearse.bench_scraper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def scrape(self, url: str | None) -> int:
        """Fetch this from now on (None: nothing). Returns how many fetches there were since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{url or ''}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline() or 0)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(FETCH_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def fetch(url: str) -> int:
    """Fetch a URL; return how many bytes came."""
    with urllib.request.urlopen(url, timeout=FETCH_S) as answer:  # noqa: S310 the daemon's own address
        return len(answer.read())


def serve() -> None:
    """Do what standard input says."""
    url, fetched = "", 0
    while True:
        if select.select([sys.stdin], [], [], PERIOD_S if url else None)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            url = line.strip()
            print(fetched, flush=True)  # noqa: T201 this is its protocol
            fetched = 0
        if url:
            fetched += int(fetch(url) > 0)


if __name__ == "__main__":
    serve()
