# SPDX-License-Identifier: Apache-2.0
"""
What host names stand for, asked in threads of their own.

A resolver whose servers do not answer takes 10 s and more. Whoever waits for it meanwhile does nothing else: the control plane, or the
libzmq thread that serves other workers, too.
"""

from __future__ import annotations

import socket
import threading
import time

from collections.abc import Callable, Sequence
from typing import Final


FRESH_S: Final = 1.0  # an answer, or that there is none, is asked for anew after that, when somebody wants to know
LIMIT_S: Final = 0.4  # no answer by then is said as such: within one look
MOST_ASKED: Final = 16  # at a time; names that nobody uses any more may be among them, until their resolver gives up
MOST_NAMES: Final = 64  # that are remembered
MOST_ADDRESSES: Final = 4  # of a name; more are left out
# The answer is that there is no such name. Not every libc has EAI_NODATA.
GONE: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

Resolve = Callable[[str], Sequence[str]]


class UnresolvedError(Exception):
    """There is no address for a name. ``early``: it is too soon to speak of a fault."""

    def __init__(self, name: str, reason: str, *, early: bool) -> None:
        super().__init__(f"the name {name} is not resolved: {reason}")
        self.early = early


def resolve(name: str) -> Sequence[str]:
    """Return the addresses of ``name``, IPv4 first: that is what most workers are bound to. Waits; raises OSError."""
    # Bytes: for a str Python would import its tables of international names.
    found = socket.getaddrinfo(name.encode("ascii"), None, type=socket.SOCK_STREAM)
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class Names:
    """Never waits: ``addresses`` says what is known, and has it asked for where that is old. One question a name at a time."""

    def __init__(self, resolve: Resolve = resolve, clock: Callable[[], float] = time.monotonic) -> None:
        self._resolve = resolve
        self._clock = clock
        self._names: dict[str, _Name] = {}

    def addresses(self, name: str) -> Sequence[str]:
        """
        Return the addresses of ``name``. Raises UnresolvedError where none is known.

        Those that were known last stay while no other answer comes: a worker can be reached while its name's servers cannot.
        """
        known = self._names.get(name) or self._new(name)
        known.look()
        if known.question is None and self._clock() - known.at >= FRESH_S:
            known.fault = self._ask(known) or known.fault
        if not known.addresses:
            late = known.question is not None and self._clock() - known.question.began >= LIMIT_S
            reason = f"no answer within {LIMIT_S:g} s" if late else known.fault
            raise UnresolvedError(name, reason or "no answer yet", early=not reason)
        return sorted(known.addresses, key=lambda each: each != known.preferred)

    def prefer(self, name: str, address: str) -> None:
        """Name ``address`` before the others from now on."""
        if known := self._names.get(name):
            known.preferred = address

    def _new(self, name: str) -> _Name:
        if len(self._names) >= MOST_NAMES:
            self._names = {each.name: each for each in self._names.values() if each.question is not None}
        return self._names.setdefault(name, _Name(name))

    def _ask(self, known: _Name) -> str | None:
        """Return why that cannot be done now."""
        asked = 0
        for each in self._names.values():
            each.look()
            asked += each.question is not None
        if asked >= MOST_ASKED:
            return f"{asked} other names are being asked for"
        question = _Question(known.name, self._resolve, self._clock)
        # The end of the process does not wait for such a thread.
        thread = threading.Thread(target=question.ask, name="dsv41-name", daemon=True)
        try:
            thread.start()
        except RuntimeError as fault:
            return str(fault)
        known.question = question
        return None


class _Question:
    """Asked in a thread. ``ended`` is written last: once it is there, so is the outcome."""

    def __init__(self, name: str, resolve: Resolve, clock: Callable[[], float]) -> None:
        self.began = clock()
        self.ended: float | None = None
        self.addresses: Sequence[str] = ()
        self.fault = "it has no address"
        self.gone = False
        self._name = name
        self._resolve = resolve
        self._clock = clock

    def ask(self) -> None:
        try:
            self.addresses = tuple(self._resolve(self._name))[:MOST_ADDRESSES]
            self.fault = "" if self.addresses else self.fault
        except (OSError, UnicodeError) as fault:
            self.fault = (fault.strerror if isinstance(fault, OSError) else None) or str(fault)
            self.gone = isinstance(fault, socket.gaierror) and fault.errno in GONE
        finally:
            self.ended = self._clock()


class _Name:
    """What is known of one: ``at`` is when it came to be known."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.at = float("-inf")
        self.addresses: Sequence[str] = ()
        self.preferred = ""
        self.fault = ""
        self.question: _Question | None = None

    def look(self) -> None:
        """Take the answer where it has come."""
        question = self.question
        if question is None or question.ended is None:
            return
        self.question, self.at, self.fault = None, question.ended, question.fault
        if question.addresses or question.gone:
            self.addresses = question.addresses
