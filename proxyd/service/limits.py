# SPDX-License-Identifier: Apache-2.0
"""What the kernel lets this process have: looked at before anything depends on it."""

from __future__ import annotations

import resource

from pathlib import Path
from typing import Final

from proxyd.errors import NotNowError


LEAST_FILES: Final = 40  # that the daemon opens until it is ready, and for its first engine
MANY_FILES: Final = 512  # for as many sessions, clients and operators as there may be


def check_files() -> None:
    """Raise NotNowError where too few files may be opened: libzmq does not fail without, it aborts the process."""
    most, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return
    try:
        free = most - sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:  # not even one
        free = 0
    if free < LEAST_FILES:
        raise NotNowError(
            f"this process may open {most} files, {max(free, 0)} more than it has open: at least {LEAST_FILES} more are needed; raise "
            f"`ulimit -n` (LimitNOFILE=), {MANY_FILES} do for all sessions"
        )


def allow_locking() -> None:
    """Regions are locked in memory as far as this process may lock at all."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
