# SPDX-License-Identifier: Apache-2.0
"""The reference worker against hostile daemons: whole messages through its server, and every decoder of hostflag.wire."""

from __future__ import annotations

import struct

from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
import zmq

from fuzz.cursor import Cursor
from fuzz.watch import begin, end, must
from hostflag import wire
from hostflag.audit import RoundAudit
from hostflag.control import Open, SessionGeometry
from hostflag.messages import EngineIdentity
from hostflag.wire import BadMessage, Kind, Reply, Request, Round, Status
from refworker.mock import Mock
from refworker.prompt_lookup import PromptLookup
from refworker.server import Server
from refworker.sessions import Sessions


MAX_STEPS: Final = 24
MAX_SESSIONS: Final = 3
MOST_ROWS: Final = 40
SMALL: Final = SessionGeometry(row_bytes=8, window=4, drafts=2, vocab=300, max_requests=3, state_slots=4)
EXTRA: Final = SessionGeometry(
    row_bytes=16, window=1, drafts=1, vocab=0x7FFF_FFFF, max_requests=2, state_slots=2, extra_bytes=3
)
HUGE: Final = SessionGeometry(
    row_bytes=1 << 20, window=1, drafts=64, vocab=1, max_requests=256, state_slots=256, extra_bytes=1 << 20
)
GEOMETRIES: Final = (SMALL, EXTRA, HUGE)


class Peers:
    """Stands in for the worker's ROUTER: what daemons sent is in a list, and so is what they are sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes]] = []
        self.stop: Callable[[], None] = lambda: None
        self._frames: list[bytes] = []

    def put(self, identity: bytes, parts: list[bytes]) -> None:
        self._frames = [identity, *parts]

    def get(self, option: int) -> int:
        return int(option == zmq.RCVMORE and bool(self._frames))

    def recv(self, *, copy: bool = True) -> Any:
        if not self._frames:
            self.stop()
            raise zmq.Again
        data = self._frames.pop(0)
        return data if copy else Frame(data, bool(self._frames))

    def send_multipart(self, parts: tuple[bytes, bytes], _flags: int) -> None:
        self.sent.append(parts)


class Frame:
    """What pyzmq returns for a part that it does not copy."""

    def __init__(self, data: bytes, more: bool) -> None:
        self.buffer = memoryview(data)
        self.more = more

    def __len__(self) -> int:
        return len(self.buffer)

    def get(self, _option: int) -> int:
        return -1


class Audits:
    """Takes audit lines, and sees to it that they can be written."""

    def write(self, line: RoundAudit) -> None:
        msgspec.json.encode(line)

    def flush(self) -> None:
        """Nothing waits here."""


def one_input(data: bytes) -> None:
    """Raise whatever is wrong with what this input makes the worker do."""
    cursor = Cursor(data)
    begin()
    peers = Peers()
    make = cursor.one_of((Mock, PromptLookup))
    sessions = Sessions(make, MAX_SESSIONS)
    server = Server(cast("Any", peers), sessions, worker="w", drafter="d", audit=cast("Any", Audits()))
    for _ in range(MAX_STEPS):
        if not cursor.left:
            break
        identity = cursor.one_of((b"a", b"b"))
        parts = _message(cursor)
        _decode_all(parts)
        _serve(server, peers, sessions, identity, parts)
    end()
    must(len(sessions) <= MAX_SESSIONS, "more sessions than the worker takes")
    must(server.counts["internal errors"] == 0, "an internal error of the worker")


def _serve(server: Server, peers: Peers, sessions: Sessions, identity: bytes, parts: list[bytes]) -> None:
    peers.put(identity, parts)
    peers.stop = server.stop
    peers.sent.clear()
    server._stopping = False
    server.run()
    answers = [part for to, part in peers.sent if to == identity]
    head = _header(parts[0]) if parts else None
    is_round = head is not None and head.kind is Kind.ROUND
    must(len(answers) <= 1 + (not is_round) * MAX_SESSIONS, "more than one answer")
    for answer in answers:
        _check_answer(answer, parts, head, sessions, identity)
    if is_round and not wire.wants_reply(parts[0]):
        must(not answers, "an answer to a context-only round")


def _check_answer(
    answer: bytes, parts: list[bytes], asked: wire.Header | None, sessions: Sessions, identity: bytes
) -> None:
    must(len(answer) <= wire.MAX_PART_BYTES, f"an answer of {len(answer)} bytes is larger than a part may be")
    header = wire.decode_header(answer)
    if header.kind is Kind.PONG:
        must(asked is not None and asked[:3] == (Kind.PING, *header[1:3]), "a PONG that nobody asked for")
    elif header.kind is Kind.REPLY:
        must(asked is not None and asked[:3] == (Kind.ROUND, *header[1:3]), "a REPLY that nobody asked for")
        session = sessions._sessions.get(header.session)
        session = session if session is not None and session.identity == identity else None
        reply = wire.decode_reply(header, answer, session.geometry if session else SMALL)
        must(session is not None or reply.status is Status.UNKNOWN_SESSION, "a REPLY for a session that is not open")
        if session and reply.status is Status.OK:
            sent = wire.decode_round(wire.decode_header(parts[0]), parts, session.geometry)
            must(reply.n_requests == len(sent.requests), "a REPLY for another number of requests")
    else:
        wire.decode_control(header, answer)


def _header(part: bytes) -> wire.Header | None:
    try:
        return wire.decode_header(part)
    except BadMessage:
        return None


def _decode_all(parts: list[bytes]) -> None:
    """Whatever decodes says the same once it is encoded again."""
    header = _header(parts[0]) if parts else None
    if header is None:
        return
    for attempt in (_again_control, _again_round, _again_reply):
        try:
            attempt(header, parts)
        except BadMessage as error:
            must(bool(str(error)), "a fault without a reason")


def _again_control(header: wire.Header, parts: list[bytes]) -> None:
    message = wire.decode_control(header, parts[0])
    part = wire.encode_control(header.session, message)
    must(wire.decode_control(wire.decode_header(part), part) == message, "a control message that changes")


def _again_round(header: wire.Header, parts: list[bytes]) -> None:
    if header.kind is not Kind.ROUND:
        return
    for geometry in GEOMETRIES:
        message = wire.decode_round(header, parts, geometry)
        must(sum(each.rows for each in message.requests) == len(message.positions), "rows that do not add up")
        must(all(0 <= token < geometry.vocab for token in message.tokens), "a token that is none")
        head, rows = wire.encode_round(message)
        # The round's number travels in the header, whose last fields are the same by what was decoded.
        must((head, bytes(rows)) == (bytes(parts[0]), bytes(parts[1])), "a ROUND that changes")


def _again_reply(header: wire.Header, parts: list[bytes]) -> None:
    if header.kind is not Kind.REPLY:
        return
    reply = wire.decode_reply(header, parts[0], SMALL)
    must(all(0 <= each < SMALL.vocab for each in reply.ids), "an id that is none")
    again = (
        wire.encode_reply(reply, SMALL)
        if reply.status is Status.OK
        else wire.encode_status(header.session, header.round, reply.status)
    )
    if reply.status is Status.OK:
        must(again == bytes(parts[0]), "a REPLY that changes")


def _message(cursor: Cursor) -> list[bytes]:
    kind = cursor.byte() % 8
    session = 1 + cursor.byte() % 4
    if kind == 0:
        return [cursor.block() for _ in range(cursor.byte() % 4)]
    if kind == 1:
        body = cursor.block()
        return [wire.encode_header(cursor.one_of(tuple(Kind)), session, cursor.byte(), len(body)) + body]
    if kind in {2, 3}:
        return _opening(cursor, session)
    if kind == 4:
        return [wire.encode_header(Kind.PING, session, cursor.byte())]
    if kind == 5:
        return [_reply(cursor, session)]
    return _round(cursor, session)


def _opening(cursor: Cursor, session: int) -> list[bytes]:
    engine = EngineIdentity(name=cursor.one_of(("e", "f", "")), rank=cursor.byte() % 2)
    protocol = wire.PROTOCOL if cursor.byte() < 240 else cursor.number(8)
    message = Open(protocol=protocol, engine=engine, model="m", geometry=cursor.one_of(GEOMETRIES))
    body = cursor.spoiled(msgspec.json.encode(message))
    return [wire.encode_header(Kind.OPEN, session, 0, len(body)) + body, *[b""] * (cursor.byte() // 250)]


def _reply(cursor: Cursor, session: int) -> bytes:
    n_requests = cursor.byte() % (SMALL.max_requests + 1)
    ids = struct.pack(f"<{n_requests * 2}q", *(cursor.byte() for _ in range(n_requests * 2)))
    reply = Reply(session, 1, Status.OK, n_requests, memoryview(ids).cast("q"), memoryview(b""))
    return cursor.spoiled(wire.encode_reply(reply, SMALL))


def _round(cursor: Cursor, session: int) -> list[bytes]:
    geometry = cursor.one_of(GEOMETRIES)
    context_only = cursor.byte() >= 200
    requests: list[Request] = []
    positions: list[int] = []
    for slot in range(1 + cursor.byte() % geometry.max_requests):
        rows = cursor.byte() % 8 if geometry is not HUGE and len(positions) < MOST_ROWS else 0
        draft = not context_only and cursor.byte() < 200
        at = cursor.number(cursor.one_of((1, 1, 2, 8))) & 0x7FFF_FFFF_FFFF_FFFF
        positions += [max(0, min(at + index * (1 + cursor.byte() // 128), (1 << 63) - 1)) for index in range(rows)]
        requests.append(
            Request(slot, cursor.byte() % 3, 0, rows, draft, cursor.byte() % geometry.vocab if draft else -1)
        )
    tokens = [cursor.byte() % min(geometry.vocab, 4) for _ in positions]
    message = Round(
        session,
        cursor.byte(),
        context_only,
        geometry.row_bytes,
        geometry.drafts,
        requests,
        memoryview(struct.pack(f"<{len(positions)}q", *positions)).cast("q"),
        memoryview(struct.pack(f"<{len(tokens)}i", *tokens)).cast("i"),
        memoryview(bytes(len(positions) * geometry.row_bytes)),
    )
    head, rows_part = wire.encode_round(message)
    return [cursor.spoiled(head), bytes(rows_part), *[b""] * (cursor.byte() // 250)]
