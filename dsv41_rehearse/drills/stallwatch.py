# SPDX-License-Identifier: Apache-2.0
"""
``stallwatch.py FD AT CPU NAP_NS PARENT``: notes when a nap on that processor was longer than what was asked for.

A process of its own, so that nobody's interpreter lock is measured. Imports no more than it needs.
"""

import mmap
import os
import signal
import struct
import sys
import time


KEPT_NS = 5_000_000  # what is shorter is a busy machine's, not a still one's
KEPT = 16_384  # stalls: the newest
HEAD = struct.Struct("=QQ")  # stalls so far; when the last nap ended (CLOCK_MONOTONIC, ns), 0: not yet
STALL = struct.Struct("=QQ")  # from when on it should have run, and when it did
BYTES = HEAD.size + KEPT * STALL.size  # of one processor


def main() -> None:
    """Watch for as long as the parent lives."""
    fd, at, cpu, nap_ns, parent = (int(word) for word in sys.argv[1:])
    os.sched_setaffinity(0, {cpu})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when whoever is measured has
    notes = mmap.mmap(fd, 0)
    count, due = 0, time.monotonic_ns() + nap_ns
    while os.getppid() == parent:
        time.sleep(nap_ns / 1e9)
        now = time.monotonic_ns()
        if now - due >= KEPT_NS:
            STALL.pack_into(notes, at + HEAD.size + count % KEPT * STALL.size, due, now)
            count += 1
        HEAD.pack_into(notes, at, count, now)
        due = now + nap_ns


if __name__ == "__main__":
    main()
