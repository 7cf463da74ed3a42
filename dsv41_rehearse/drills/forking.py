# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41_rehearse.drills.forking SOCKET NAME yes|no``: an engine with a session and, where asked, a forked child that stays."""

from __future__ import annotations

import os
import sys
import time

from pathlib import Path
from typing import Final

from dsv41_rehearse.drills.caller import GEOMETRY
from engine_shim import Shim, ShimOptions, SoftStream
from hostflag.messages import EngineIdentity


SESSION_S: Final = 20.0


def stay() -> None:
    """Stay until whoever started this closes its end of standard input, then end at once: nothing of a parent's is touched."""
    while os.read(0, 1):
        pass
    os._exit(0)


def main() -> int:
    """Say who is there, then stay."""
    path, name, fork = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "yes"
    stream = SoftStream()
    identity = EngineIdentity(name=name, pid=os.getpid())
    options = ShimOptions(deadline_ms=1_000.0)
    shim = Shim(path, geometry=GEOMETRY, model="drill", engine=identity, stream=stream, options=options)
    shim.first_session(SESSION_S)
    if fork and os.fork() == 0:
        stay()
    time.sleep(0.1)
    sys.stdout.write("there\n")
    sys.stdout.flush()
    stay()
    return 0


if __name__ == "__main__":
    sys.exit(main())
