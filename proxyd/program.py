# SPDX-License-Identifier: Apache-2.0
"""What ``dsv41-proxyd`` does: its configuration, logging, then the server until a signal ends it."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import time

from typing import TYPE_CHECKING, Final

import structlog

from hostflag import logging
from hostflag.stderr import Stderr, fill_standard_descriptors
from proxyd._daemon import lib
from proxyd.config import commandline, printout
from proxyd.config.configuration import Configuration
from proxyd.config.faults import ConfigurationError
from proxyd.errors import NotNowError, StartError
from proxyd.service import activation, check, limits
from proxyd.service.notify import Notifier
from proxyd.service.server import Server


if TYPE_CHECKING:
    from collections.abc import Sequence


EXIT_FAILED: Final = 1  # also where a start may go well later: the service manager tries again
EXIT_USAGE: Final = 2  # what argparse ends with
EXIT_CONFIG: Final = 78  # EX_CONFIG: a restart will not help
# Before a start that failed for what may pass ends: a manager that starts it again at once would soon give up (StartLimitBurst=).
PAUSE_S: Final = 7.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status."""
    fill_standard_descriptors()
    line = commandline.parse(argv)
    notifier = Notifier.take(os.environ)
    try:
        configuration = Configuration(line, os.environ)
    except ConfigurationError as error:
        sys.stderr.write(f"dsv41-proxyd: cannot start with this configuration:\n{error}\n")
        notifier.status("cannot start with this configuration: see the log")
        return EXIT_CONFIG
    if line.action == commandline.CHECK:
        return _check(configuration)
    if line.action == commandline.PRINT:
        return _print(printout.as_toml(configuration))
    with contextlib.redirect_stderr(Stderr()):
        logging.configure(configuration.settings.log_level, configuration.settings.log_format)
        return _serve(configuration, notifier)


def _check(configuration: Configuration) -> int:
    faults = check.faults_of(configuration.settings)
    if not faults:
        return _print("ok\n")
    blamed = [fault for fault in faults if not fault.may_pass]
    what = "cannot start with this configuration" if blamed else "cannot start now, whatever the configuration"
    sys.stderr.write("".join(f"{line}\n" for line in (f"dsv41-proxyd: {what}:", *(blamed or faults))))
    return EXIT_CONFIG if blamed else EXIT_FAILED


def _print(text: str) -> int:
    # Not sys.stdout: TOML is UTF-8 whatever the locale says.
    try:
        with open(1, "w", encoding="utf-8", closefd=False) as out:
            out.write(text)
    except OSError as fault:
        sys.stderr.write(f"dsv41-proxyd: cannot write to standard output: {fault.strerror}\n")
        return EXIT_FAILED
    return 0


def _serve(configuration: Configuration, notifier: Notifier) -> int:
    faulthandler.enable(2)  # where a watchdog ends us (SIGABRT), the journal says where every thread was
    limits.allow_locking()
    if lib.hfd_heap_bound() < 0:
        structlog.get_logger().debug("this C library's heap has no bound", pid=os.getpid())
    try:
        limits.check_files()
        server = Server(configuration, notifier, activation.take(os.environ))
    except StartError as fault:
        return _not_started(fault, notifier)
    except OSError as fault:  # out of files, memory, ...
        return _not_started(NotNowError(str(fault)), notifier)
    if server.serve():
        server.close()
        return 0
    server.abandon()
    # Loops that did not end still run: an orderly exit would free what they use.
    os._exit(EXIT_FAILED)


def _not_started(fault: StartError, notifier: Notifier) -> int:
    structlog.get_logger().error("cannot start", reason=str(fault))
    notifier.status(f"cannot start: {fault}")
    if not fault.may_pass:
        return EXIT_CONFIG
    if notifier.manager:
        time.sleep(PAUSE_S)
    return EXIT_FAILED
