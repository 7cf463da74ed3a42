# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41_rehearse.drills.dying SOCKET COUNT SEED``: so many engines connect, get to some point, and are killed there."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import signal
import struct
import sys

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dsv41_rehearse.drills.caller import GEOMETRY, Caller
from hostflag import geometry as geometries
from hostflag import messages as m
from hostflag._hostflag import ffi, lib
from hostflag.channel import ChannelClosed, ChannelTimeout


def _connected(caller: Caller, name: str) -> None:
    del caller, name


def _greeted(caller: Caller, name: str) -> None:
    caller.greet(name)


def _asked(caller: Caller, name: str) -> None:
    """The region is on its way, and nobody takes it."""
    if isinstance(caller.greet(name), m.Welcome):
        caller.channel.send(m.Create())


def _ready(caller: Caller, name: str) -> None:
    caller.ready(name)


def _mid_round(caller: Caller, name: str) -> None:
    """A round is submitted that is never gathered."""
    if isinstance(caller.ready(name), m.Ready):
        layout = ffi.new("struct hf_layout *")
        lib.hf_layout_of(geometries.to_c(GEOMETRY), layout)
        whole = mmap.mmap(caller.region_fd, 0)
        slot = layout.slots + layout.slot_stride
        header = ffi.new("struct hf_round *", {"round": 1, "session": int(caller.session, 16), "n_requests": 1})
        whole[slot : slot + ffi.sizeof("struct hf_round")] = bytes(ffi.buffer(header))
        struct.pack_into("<I", whole, layout.engine_words, 1)


POINTS: Final[dict[str, Callable[[Caller, str], None]]] = {
    "connected": _connected, "greeted": _greeted, "asked": _asked, "ready": _ready, "mid-round": _mid_round,
}  # fmt: skip


def main() -> int:
    """Fork one after the other, so that each is a process of its own; print how many got to each point."""
    path, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance, done = random.Random(seed), Counter[str]()
    for number in range(count):
        point = chance.choice(list(POINTS))
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(ChannelClosed, ChannelTimeout, OSError):
                POINTS[point](Caller(path), f"dying-{number}")
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        done[point] += 1
    sys.stdout.write(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
