# SPDX-License-Identifier: Apache-2.0
"""What hostile peers say at the doors: any message of the handshake, most of them nearly right."""

from __future__ import annotations

import re

from typing import Final

import msgspec

from fuzz.cursor import Cursor
from hostflag import geometry as geometries
from hostflag import messages as m


BASE: Final = 4
GEOMETRY: Final = m.Geometry(
    slots=4, max_requests=2, state_slots=4, row_bytes=16, window=8, drafts=2, vocab=1000, ring_bytes=65536
)
HELLO: Final = m.Hello(
    protocol=m.PROTOCOL_VERSION,
    layout_hash=geometries.layout_hash(),
    geometry=GEOMETRY,
    deadline_ms=200.0,
    model="model",
    engine=m.EngineIdentity(name="engine", rank=1, pid=7),
)
_SESSION: Final = m.SessionStatus(
    session="0" * 16, engine="e", rank=0, pid=1, seconds=1.0, round=1, link="up", endpoint="tcp://h:1", worker=None, breaker="closed",
    beating=True,
)  # fmt: skip
_RECORD: Final = m.RoundRecord(1, "OK", False, 1, 2, 10, 1, 2, 3, None, 5, 6)
WORDS: Final[tuple[m.Message, ...]] = (
    HELLO,
    m.Create(),
    m.Attach(base=BASE),
    m.Goodbye(),
    m.OperatorHello(protocol=m.PROTOCOL_VERSION),
    m.SwitchWorker(endpoints=("tcp://127.0.0.1:5741", "ipc:///tmp/w")),
    m.StatusRequest(),
    m.Drain(reason="why"),
    m.Resume(),
    m.Reload(),
    m.DumpRequest(session="0" * 16, rounds=3),
    m.Welcome(session="0" * 16, pid=1, version="v", network_timeout_ms=150.0, metrics=None),
    m.Refused(code="code", reason="reason"),
    m.Region(bytes=655360),
    m.Ready(locked=True, lock_reason=None),
    m.Draining(reason="why"),
    m.Resumed(),
    m.Bye(),
    m.Done(text="text"),
    m.Status(
        pid=1, version="v", seconds=1.0, endpoint="tcp://h:1", endpoints=("tcp://h:1",), draining=False, healthy=True, reasons=(),
        notes=("note",), sessions=(_SESSION,),
    ),
    m.Dump(session="0" * 16, engine="e", rank=0, records=(_RECORD,)),
)  # fmt: skip
# What stands for a value in a message that is nearly right.
VALUES: Final = (
    b"0", b"-1", b"1e999", b"1e-400", b"18446744073709551616", b"9" * 4000, b"null", b"true", b'""', b'"\\ud800"', b"[]", b"{}",
    b'"' + b"x" * 257 + b'"', b"[" * 5000 + b"]" * 5000, b'"\\u0000\\u001b[2J"', b"1.5", b"4294967295",
)  # fmt: skip
VALUE: Final = re.compile(rb'(?<=:)("[^"]*"|[-0-9.e]+|null|true|false|\[[^]]*\])')


def packet(cursor: Cursor) -> bytes:
    """Return a packet: a message, one with another value in it, with another key, with spoiled bytes, or any bytes."""
    how = cursor.byte() % 8
    if how == 0:
        return cursor.block()
    message = cursor.one_of(WORDS)
    data = msgspec.json.encode(message)
    if how == 1:
        return cursor.spoiled(data)
    if how == 2:
        return _other_value(cursor, data)
    if how == 3:
        # Before the type: a decoder has to get over it to find out what message it is.
        return b'{"' + cursor.one_of((b"a", b"type", b"pid")) + b'":' + cursor.one_of(VALUES) + b"," + data[1:]
    if how == 4:
        return data + b" " * (cursor.number(2) + cursor.byte())
    return data


def _other_value(cursor: Cursor, data: bytes) -> bytes:
    places = list(VALUE.finditer(data))
    place = places[cursor.byte() % len(places)]
    value = cursor.block() if (choice := cursor.byte()) >= 128 else VALUES[choice % len(VALUES)]
    return data[: place.start()] + value + data[place.end() :]
