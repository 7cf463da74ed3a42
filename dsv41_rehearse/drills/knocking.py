# SPDX-License-Identifier: Apache-2.0
"""``python -m dsv41_rehearse.drills.knocking SOCKET HOW COUNT``: so many connections of one kind; prints what they were answered."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from dsv41_rehearse.drills.caller import Caller, hello
from hostflag import messages as m


MANY_FDS: Final = 253  # the most that the kernel lets through in one message
NOBODY: Final = 65534
KEPT_OPEN: Final = 100  # more than the daemon takes at once
CLOSED: Final = "closed"
_NESTED: Final = b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b',"type":"HELLO"}'


def _junk(caller: Caller) -> None:
    caller.send(os.urandom(500))


def _nested(caller: Caller) -> None:
    caller.send(_NESTED)


def _version(caller: Caller) -> None:
    caller.send(msgspec.json.encode(hello(protocol=m.PROTOCOL_VERSION + 1)))


def _layout(caller: Caller) -> None:
    caller.send(msgspec.json.encode(hello(layout_hash="0123456789abcdef")))


def _fds(caller: Caller) -> None:
    with Path(os.devnull).open("rb") as null:
        caller.send(msgspec.json.encode(hello()), [null.fileno()] * MANY_FDS)


def _proper(caller: Caller) -> None:
    caller.send(msgspec.json.encode(hello()))


_SAID: Final[dict[str, Callable[[Caller], None]]] = {
    "junk": _junk, "nested": _nested, "version": _version, "layout": _layout, "fds": _fds, "uid": _proper,
}  # fmt: skip


def _say(path: Path, how: str, count: int) -> Counter[str]:
    answers = Counter[str]()
    for _ in range(count):
        with Caller(path) as caller:
            _SAID[how](caller)
            refusal = caller.refusal()
        answers[refusal.code if refusal else CLOSED] += 1
    return answers


def _silent(path: Path, count: int) -> Counter[str]:
    """Connect and say nothing; so many stay open at once. Each is answered in the end."""
    answers, kept = Counter[str](), deque[Caller]()

    def let_go() -> None:
        with kept.popleft() as caller:
            refusal = caller.refusal()
        answers[refusal.code if refusal else CLOSED] += 1

    for _ in range(count):
        kept.append(Caller(path))
        if len(kept) > KEPT_OPEN:
            let_go()
    while kept:
        let_go()
    return answers


def _gone(path: Path, count: int) -> Counter[str]:
    """Connect and leave at once."""
    for _ in range(count):
        with contextlib.suppress(OSError), Caller(path):
            pass
    return Counter(left=count)


def main() -> int:
    """Knock."""
    path, how, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if how == "uid":
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    began = time.monotonic()
    answers = (
        _silent(path, count) if how == "silent" else _gone(path, count) if how == "gone" else _say(path, how, count)
    )
    sys.stdout.write(json.dumps({"answers": answers, "seconds": round(time.monotonic() - began, 3)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
