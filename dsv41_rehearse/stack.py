# SPDX-License-Identifier: Apache-2.0
"""The other processes of a rehearsal, in a temporary directory: daemon and worker, started, awaited, ended, cleaned up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, final

from dsv41_rehearse import interrupts
from dsv41_rehearse.proc import alive


READY_S: Final = 20.0
END_S: Final = 5.0
MAX_SOCKET_PATH_BYTES: Final = 107
LOG_TAIL: Final = 5  # lines of a log that an error shows


class StackError(Exception):
    """A process did not start or ended by itself; the message holds the end of its log."""


@dataclass
class Child:
    """A process of the stack. Its log is what it writes to stderr, from ``log_from`` on. ``ready_ns``: CLOCK_MONOTONIC, once ready."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    log_from: int = 0
    ready_ns: int = 0

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def ready(self, timeout_s: float = READY_S) -> dict[str, Any]:
        """Return the fields of its log line event="ready". Raises StackError where none comes."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            for line in self._said():
                event = _event(line)
                if event is not None and event.get("event") == "ready":
                    self.ready_ns = _monotonic_ns(str(event["timestamp"]))
                    return event
            if self.process.poll() is not None:
                raise StackError(
                    f"{self.name} ended with status {self.process.returncode} before it was ready:\n{self.tail()}"
                )
            time.sleep(0.005)
        raise StackError(f"{self.name} was not ready within {timeout_s:g} s:\n{self.tail()}")

    def _said(self) -> list[str]:
        with self.log.open("rb") as log:
            log.seek(self.log_from)
            return log.read().decode(errors="replace").splitlines()

    def tail(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self._said()[-LOG_TAIL:]) or "(its log is empty)"

    def kill(self) -> int:
        """End it with SIGKILL, wait until it is gone; return when that was sent (CLOCK_MONOTONIC, ns)."""
        sent_ns = time.monotonic_ns()
        self.process.kill()
        self.process.wait()
        return sent_ns

    def stop(self) -> int:
        """Stop it with SIGSTOP; return when that was sent (CLOCK_MONOTONIC, ns)."""
        sent_ns = time.monotonic_ns()
        self.process.send_signal(signal.SIGSTOP)
        return sent_ns

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def end(self, timeout_s: float = END_S) -> int:
        """End it: SIGTERM, after ``timeout_s`` SIGKILL. Returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)  # a stopped process could not follow
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


@final
@dataclass
class Stack:
    """
    Processes and the directory they work in. As a context manager it leaves neither behind, whatever happened.

    ``keep``: both stay, for inspection. ``environment``: variables that children get besides ours. A child ends when the *thread* that started it does: such a thread outlives the stack.
    """

    keep: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    directory: Path = field(init=False)
    children: list[Child] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: bool = False

    def __enter__(self) -> Stack:
        with interrupts.held():
            self.directory = Path(tempfile.mkdtemp(prefix="dsv41-rehearse-"))
            try:
                self._check()
                with interrupts.let_through():
                    return self
            except BaseException:
                self.end()
                raise

    def _check(self) -> None:
        if len(bytes(self.socket)) > MAX_SOCKET_PATH_BYTES:
            raise StackError(f"{self.socket} is too long for a Unix socket: set TMPDIR to a shorter path")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.keep:
            self.end()

    @property
    def socket(self) -> Path:
        """Where the daemon listens for engines."""
        return self.directory / "engine.sock"

    def start_worker(
        self,
        drafter: str,
        *,
        delay_ms: float = 0.0,
        audit: Path | None = None,
        name: str = "worker",
        bind: str = "tcp://127.0.0.1:*",
    ) -> str:
        """Start a reference worker. Returns the endpoint it bound."""
        endpoint_file = self.directory / f"{name}.endpoint"
        arguments = ["--bind", bind, "--endpoint-file", str(endpoint_file), "--drafter", drafter]
        arguments += ["--delay-ms", str(delay_ms)] if delay_ms else []
        arguments += ["--audit", str(audit)] if audit is not None else []
        self.start(name, "refworker", [*arguments, "--log-format", "json"]).ready()
        return endpoint_file.read_text().strip()

    def start_daemon(self, endpoint: str, *, name: str = "daemon", socket: Path | None = None) -> Child:
        """Start a daemon that serves ``socket`` (the stack's by default) with the worker at ``endpoint``; wait until it is ready."""
        arguments = ["--socket", str(socket or self.socket), "--worker", endpoint, "--metrics", "127.0.0.1:0"]
        daemon = self.start(name, "proxyd", [*arguments, "--log-format", "json"])
        daemon.ready()
        return daemon

    def unlink_socket(self) -> None:
        """Take socket and lock from a daemon that is stopped, as an operator who cannot end it would: they keep the next one away."""
        self.socket.unlink(missing_ok=True)
        self.socket.with_name(self.socket.name + ".lock").unlink(missing_ok=True)

    def switch_worker(self, endpoint: str) -> None:
        """Lead the daemon to another worker, as an operator does. Raises StackError where it does not go there."""
        ctl = [sys.executable, "-m", "proxyd.operator.ctl", "--socket", str(self.socket), "switch-worker", endpoint]
        done = subprocess.run(ctl, capture_output=True, text=True, check=False, timeout=READY_S)
        if done.returncode != 0:
            raise StackError(f"the daemon does not change its worker: {done.stderr.strip()}")

    def start(self, name: str, module: str, arguments: Sequence[str]) -> Child:
        """Start ``python -m module``; its stderr goes to ``name``.log. Raises StackError where the stack has been ended."""
        log = self.directory / f"{name}.log"
        launcher = [] if self.keep else ["dsv41_rehearse.child", str(os.getpid())]
        with interrupts.held(), self._lock:
            if self._ended:
                raise StackError(f"{name} is not started: the rehearsal is over")
            with log.open("ab") as stderr:
                log_from = stderr.tell()
                process = subprocess.Popen(
                    [sys.executable, "-m", *launcher, module, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    env={**os.environ, **self.environment},
                    # Ctrl-C on the terminal is for the rehearsal, which then ends its children in order.
                    start_new_session=True,
                )
                child = Child(name, process, log, log_from=log_from)
            self.children.append(child)
        return child

    def named(self, name: str) -> Child:
        """Return the newest child of that name."""
        return next(child for child in reversed(self.children) if child.name == name)

    def forget(self, child: Child) -> None:
        """Take a child that has ended out of what is to be ended."""
        with self._lock:
            self.children.remove(child)

    def end(self) -> list[str]:
        """End every process and remove the directory. Returns what did not go as it should."""
        with interrupts.held():
            faults = self.end_processes()
            shutil.rmtree(self.directory, ignore_errors=True)
        if self.directory.exists():
            faults.append(f"{self.directory} is still there")
        return faults

    def end_processes(self) -> list[str]:
        """End every process, the newest first: daemons before their workers. Returns what did not go as it should."""
        with self._lock:
            self._ended = True
            ending, self.children = self.children[::-1], []
        with interrupts.held():
            return [fault for child in ending for fault in _ended(child)]


def _ended(child: Child) -> list[str]:
    """End a process. Returns what did not go as it should."""
    faults = []
    ended_before = child.process.poll() is not None
    status = child.end()
    if status != 0 and not ended_before:
        faults.append(f"{child.name} ended with status {status}: {child.tail()}")
    if alive(child.pid):
        faults.append(f"{child.name} (pid {child.pid}) is still there")
    return faults


def _monotonic_ns(timestamp: str) -> int:
    """Return when that was, as this machine's CLOCK_MONOTONIC has it."""
    ago_ns = time.time_ns() - int(datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp() * 1e9)
    return time.monotonic_ns() - ago_ns


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
