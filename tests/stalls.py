# SPDX-License-Identifier: Apache-2.0
"""
A pytest plugin: a test that fails while the machine stood still is run once more.

Most tests here run real processes against real bounds, and a CI machine that takes its processors away for longer than a bound
breaks one in thousands of tests. So a small process for each processor measures how long it was kept from running, and a test that
failed in setup, call or teardown is run again, once, with new fixtures, where that was ``STALL_MS`` or more meanwhile. All others fail
at once: a race in a test or in the product needs no stall. What says that memory was misused, that drafts were wrong,
that something was left behind or that nothing moved any more is never run again.
"""

from __future__ import annotations

import re

from collections.abc import Sequence
from typing import Final

import pytest

from _pytest.runner import runtestprotocol

from dsv41_rehearse.drills.stalls import Stalls


# A sleeper on a processor that others keep busy is late by up to 8 ms (measured at a load of 4 on 2 processors). The tightest bounds of
# the tests, the network timeouts and handshakes of their daemons, are 50 ms.
STALL_MS: Final = 50.0
# In what a failed test shows, its source aside.
NEVER: Final = re.compile(
    r"(?<![\w.-])-(?:4|6|7|8|11)(?![\w.])|SIGSEGV|SIGABRT|SIGBUS|SIGILL|Segmentation fault|Fatal Python error|core dumped|Sanitizer"
    r"|wrong[ _](?:drafts|rows)|left behind by this module|Timeout \("
)


class Plugin:
    """The plugin. ``watchers``: for its own tests."""

    def __init__(self) -> None:
        self.watchers = Stalls()
        self.watchers.start()
        self._again: list[tuple[str, float, str]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        self.watchers.begin()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        stalled_ms = self.watchers.longest_ms()
        if failed(reports) and stalled_ms >= STALL_MS and not NEVER.search(shown(reports)):
            # What the module shares is new too: the failure may have left it in any state.
            torn_down = pytest.CallInfo.from_call(
                lambda: tear_down(item), "teardown", (KeyboardInterrupt, pytest.exit.Exception)
            )
            if torn_down.excinfo is None:
                self._again.append((item.nodeid, stalled_ms, shown(reports)))
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
            else:
                reports.append(hook.pytest_runtest_makereport(item=item, call=torn_down))
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._again:
            return
        terminalreporter.section("run once more: failed while the machine stood still")
        for nodeid, stalled_ms, text in self._again:
            terminalreporter.write_line(f"{nodeid}: a stall of {stalled_ms:.0f} ms; its first failure:")
            for line in text.splitlines():
                terminalreporter.write_line(f"    {line}")

    def pytest_unconfigure(self) -> None:
        self.watchers.close()


def tear_down(item: pytest.Item) -> None:
    """Tear down what the test shares with others, its output captured as ever: modules look at their descriptors there."""
    capture = item.config.pluginmanager.getplugin("capturemanager")
    with capture.item_capture("teardown", item):
        item.session._setupstate.teardown_exact(None)


def failed(reports: Sequence[pytest.TestReport]) -> bool:
    """Whether setup, call or teardown failed."""
    return any(report.failed for report in reports)


def shown(reports: Sequence[pytest.TestReport]) -> str:
    """Return what the failures say and what was captured, without the tests' own source."""
    lines = []
    for report in reports:
        if report.failed:
            lines += [line for line in report.longreprtext.splitlines() if line.startswith(("E ", ">"))]
            lines += [] if lines else report.longreprtext.splitlines()
            lines += [line for _, text in report.sections for line in text.splitlines()]
    return "\n".join(lines)


def pytest_configure(config: pytest.Config) -> None:
    """Begin to watch, unless no test is run."""
    if not config.option.collectonly:
        config.pluginmanager.register(Plugin(), "stalls in tests")
