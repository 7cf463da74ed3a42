# SPDX-License-Identifier: Apache-2.0
"""
When a process died, to the scheduling delay of one that only waits for it.

A process of its own: in the drill's, the engine thread holds the interpreter lock when it matters.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

from types import TracebackType
from typing import Final


TOLD_S: Final = 10.0
_ABOVE: Final = 1  # real-time priority above every ordinary process, where that is permitted


class Witness:
    """A context manager: from the inside on, the process is watched. ``real_time``: whether it could have that priority."""

    def __init__(self, pid: int) -> None:
        self.real_time = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dsv41_rehearse.drills.witness", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Witness:
        self.real_time = self._line() == "real-time"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def death_ns(self, within_s: float = TOLD_S) -> int:
        """
        Wait for the process's end: return when its last thread was gone (CLOCK_MONOTONIC).

        Raises TimeoutError where it lives on.
        """
        return int(self._line(within_s))

    def _line(self, within_s: float = TOLD_S) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], within_s)
        line = self._process.stdout.readline().strip() if readable else ""
        if not line:
            raise TimeoutError(f"no end of the watched process within {within_s:g} s")
        return line


def _watch(pid: int) -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_ABOVE))
        scheduled = "real-time"
    except OSError:
        scheduled = "ordinary"
    # Of a thread group's leader: readable once its last thread is gone.
    watched = os.pidfd_open(pid)
    _say(scheduled)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    _say(str(time.monotonic_ns()))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
