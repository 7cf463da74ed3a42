# SPDX-License-Identifier: Apache-2.0
"""A daemon process of a test's own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final


PATIENCE_S: Final = 30.0  # how long something may take that has no bound of its own; a loaded machine is slow


def until(what: Callable[[], Any], why: str, patience_s: float = PATIENCE_S) -> Any:
    """Return what ``what`` returns once it is true."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if result := what():
            return result
        time.sleep(0.01)
    raise AssertionError(f"not within {patience_s:g} s: {why}")


def free_port() -> int:
    """Return a port that nobody has on 127.0.0.1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def raised(fault: Exception) -> None:
    """What a test's Events do with a fault: the daemon's would say it, and go on."""
    raise fault


class Daemon:
    """
    A ``dsv41-proxyd`` of its own. Its log lines are kept in ``lines``. ``config``: worker and log level come from this file.

    ``program``: the module that is run, with what goes before the daemon's own flags.
    """

    def __init__(
        self,
        directory: Path,
        *flags: str,
        worker: str | None = None,
        socket_path: Path | None = None,
        config: Path | None = None,
        before: Sequence[str] = (),
        program: Sequence[str] = ("proxyd",),
    ) -> None:
        self.path = socket_path or directory / "e.sock"
        self.worker = worker or f"ipc://{directory}/w"
        self.lines: list[dict[str, Any]] = []
        settings = [f"--worker={self.worker}", "--log-level=debug"] if config is None else [f"--config={config}"]
        command = [*before, sys.executable, "-m", *program, f"--socket={self.path}", "--metrics=127.0.0.1:0", *settings]
        self.process = subprocess.Popen(
            [*command, "--log-format=json", *flags],
            stderr=subprocess.PIPE,
            cwd=Path(__file__).resolve().parent.parent,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Daemon:
        try:
            self.wait_for("ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.join()

    @property
    def pid(self) -> int:
        return self.process.pid

    def join(self) -> int:
        """Return the exit status once the process is over and its log is read."""
        status = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        if self.process.stderr:
            self.process.stderr.close()
        return status

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in list(self.lines) if line["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Return the ``count``-th line of that event."""

        def there() -> bool:
            if len(self.said(event)) < count and self.process.poll() is not None and not self._reader.is_alive():
                raise AssertionError(f"the daemon ended without {event!r}: {self.lines}")
            return len(self.said(event)) >= count

        until(there, f"{event} in {self.lines}")
        return self.said(event)[count - 1]

    def exactly(self, event: str, count: int) -> list[dict[str, Any]]:
        """Return the lines of that event once there are ``count``; more are a fault. What a round shows may be logged after it."""
        self.wait_for(event, count)
        lines = self.said(event)
        assert len(lines) == count, lines
        return lines

    def scrape(self) -> dict[str, float]:
        """Return the samples of /metrics by name and labels as they are written there."""
        with urllib.request.urlopen(self.said("ready")[0]["metrics"], timeout=PATIENCE_S) as response:
            text = response.read().decode()
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def resources(self) -> dict[str, int]:
        """Return how many fds, threads, memfd maps the daemon holds."""
        process = Path(f"/proc/{self.pid}")
        maps = process.joinpath("maps").read_text().splitlines()
        return {
            "fds": sum(1 for _ in process.joinpath("fd").iterdir()),
            "threads": sum(1 for _ in process.joinpath("task").iterdir()),
            "memfds": sum("memfd:dsv41" in line for line in maps),
        }

    def back_to(self, before: dict[str, int]) -> None:
        """Wait until the daemon holds no more than it did before."""
        end = time.monotonic() + PATIENCE_S
        while True:
            now = self.resources()
            if all(held <= before[what] for what, held in now.items()):
                return
            assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: resources back to {before}, still {now}"
            time.sleep(0.01)

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                self.lines.append({"event": "no JSON", "line": line.decode(errors="replace")})
