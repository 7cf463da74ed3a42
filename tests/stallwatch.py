# SPDX-License-Identifier: Apache-2.0
"""``stallwatch.py FD AT CPU``: notes how long a nap on that processor took beyond what was asked for. Imports no more than it needs."""

import mmap
import os
import signal
import struct
import sys
import time


NAP_S = 0.01
NOTES = struct.Struct(
    "<dd"
)  # the longest oversleep (ms) since it was last set to 0; when the last nap ended (CLOCK_MONOTONIC, s)


def main() -> None:
    """Watch for as long as the parent lives."""
    fd, at, cpu = (int(word) for word in sys.argv[1:])
    os.sched_setaffinity(0, {cpu})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when the tests have
    parent = os.getppid()
    notes = mmap.mmap(fd, 0)
    began = time.monotonic()
    while os.getppid() == parent:
        time.sleep(NAP_S)
        now = time.monotonic()
        longest_ms, _ = NOTES.unpack_from(notes, at)
        NOTES.pack_into(notes, at, max(longest_ms, (now - began - NAP_S) * 1000), now)
        began = now


if __name__ == "__main__":
    main()
