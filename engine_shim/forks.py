# SPDX-License-Identifier: Apache-2.0
"""
What a forked child must not keep of its parent's sessions, and what an interpreter that ends must not forget.

A child has neither the threads nor the maps. With the descriptors it would hold the session's socket open after its parent's
death, and the daemon would never see the engine gone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from engine_shim.errors import ShimError
from hostflag.channel import Channel
from hostflag.messages import FromDaemon


EXIT_S: Final = 1.0


class Forked(Protocol):
    """Something that a fork must not copy."""

    def forked(self) -> None:
        """Drop, in the child, what the child has of it. Takes no lock: its holder may not exist there."""


class Leaving(Forked, Protocol):
    """Something that is to be left in order at the end."""

    def leave(self, timeout_s: float) -> None:
        """Bring it to its end, beside threads that use it to the process's last moment: nothing of it goes away before that."""


class Passing:
    """
    Open files on their way from one owner to the next, by what they are and not by number.

    Until ``end``, every copy of them is closed in a child; one too that C has just made and told nobody of.
    """

    def __init__(self) -> None:
        self.files: set[tuple[int, int]] = set()
        _passing.add(self)

    def note(self, fd: int) -> None:
        self.files.add(_file_of(fd))

    def end(self) -> None:
        self.files.clear()


_kept: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()
_ends: Final[weakref.WeakSet[Channel[FromDaemon]]] = weakref.WeakSet()
_passing: Final[weakref.WeakSet[Passing]] = weakref.WeakSet()
_leaving: Final[weakref.WeakSet[Leaving]] = weakref.WeakSet()
# Reentrant: a signal's handler may fork in the middle of what it guards.
_forking: Final = threading.RLock()


def forget_in_children(one: Forked) -> None:
    """Call its ``forked`` in every child that is forked while it lives."""
    _kept.add(one)


def close_in_children(end: Channel[FromDaemon]) -> Channel[FromDaemon]:
    """Close it in every child that is forked while it lives, whoever has it; return it."""
    _ends.add(end)
    return end


@contextlib.contextmanager
def no_fork() -> Iterator[None]:
    """A fork of another thread waits: what begins in here is noted by the end of it. Only for what never waits."""
    with _forking:
        yield


def leave_at_exit(one: Leaving) -> None:
    """Leave it when the interpreter ends, unless it is gone by then."""
    _leaving.add(one)


def _in_child() -> None:
    with contextlib.suppress(RuntimeError):  # a signal came where it was to be acquired
        _forking.release()
    files = {file for each in list(_passing) for file in each.files}
    for one in list(_kept):
        one.forked()
    for end in list(_ends):
        end.close()
    # Last, since it goes by number: whoever knew his descriptor has closed it by now.
    if files:
        _close_all(files)


def _file_of(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino


def _close_all(files: set[tuple[int, int]]) -> None:
    with contextlib.suppress(OSError):  # no /proc
        for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
            with contextlib.suppress(OSError):  # the listing's own
                if _file_of(fd) in files:
                    os.close(fd)


def _at_exit() -> None:
    for one in list(_leaving):
        # A stream that is stuck at the very end, or a thread that is closing it: the process takes what it has with it.
        with contextlib.suppress(ShimError):
            one.leave(EXIT_S)


# Of C, both steps of the parent: between them no bytecode is run, so no signal's handler that could raise and leave it held.
# Where a signal came instead of the acquiring, the releasing is an error that Python prints, and no more.
os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_in_child)
atexit.register(_at_exit)
