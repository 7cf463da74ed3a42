# SPDX-License-Identifier: Apache-2.0
"""``dsv41-proxyd``: settings, logging, then the server until a signal ends it."""

from __future__ import annotations

import contextlib
import os
import resource
import sys

from typing import TYPE_CHECKING, Final

import structlog

from hostflag import logging
from proxyd._daemon import lib
from proxyd.errors import StartError
from proxyd.server import Server
from proxyd.settings import parse
from proxyd.stderr import Stderr, fill_standard_descriptors


if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxyd.settings import Settings


EXIT_FORCED: Final = 1
EXIT_CONFIG: Final = 78  # EX_CONFIG: a restart will not help


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    fill_standard_descriptors()
    settings = parse(argv)
    with contextlib.redirect_stderr(Stderr()):
        logging.configure(settings.log_level, settings.log_format)
        return _serve(settings)


def _serve(settings: Settings) -> int:
    _allow_locking()
    if lib.hfd_heap_bound() < 0:
        structlog.get_logger().debug("this C library's heap has no bound", pid=os.getpid())
    try:
        server = Server(settings)
    except StartError as fault:
        structlog.get_logger().error("cannot start", reason=str(fault))
        return EXIT_CONFIG
    if server.serve():
        server.close()
        return 0
    server.abandon()
    # Loops that did not end still run: an orderly exit would free what they use.
    os._exit(EXIT_FORCED)


def _allow_locking() -> None:
    """Regions are locked in memory as far as this process may lock at all."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
