# SPDX-License-Identifier: Apache-2.0
"""
The handshake on the engine socket: one JSON message a SOCK_SEQPACKET packet.

HELLO -> WELCOME or REFUSED -> CREATE or ATTACH -> REGION (with the memfd, after CREATE only) -> READY.
From then on the socket is the liveness channel: DRAINING and RESUMED from the daemon, GOODBYE from the engine, BYE back.
An operator speaks on the same socket: OPERATOR -> DONE or REFUSED, then a request at a time: STATUS_REQUEST -> STATUS,
DUMP_REQUEST -> DUMP or REFUSED; DRAIN, RESUME, RELOAD, SWITCH_WORKER -> DONE or REFUSED.
Every message is decoded strictly: unknown types and unknown fields are refused.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec


PROTOCOL_VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 65536
MAX_ENDPOINTS: Final = 8

Text = Annotated[str, msgspec.Meta(max_length=256)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
# Bounded: what is refused for its version has to fit the refusal's text.
Version = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Microseconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=60_000)]
# JSON numbers above 2**53 are not safe everywhere, so 64-bit ids travel as 16 hex digits.
Hex64 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class Geometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    Sizes both sides agree on; ``struct hf_geometry`` of native/hostflag.h, field by field.

    ``row_bytes`` and ``ring_bytes`` are bytes, ``window`` rows, the rest counts.
    """

    slots: U32 = 8
    max_requests: U32 = 16
    state_slots: U32 = 64
    row_bytes: U32
    window: U32 = 128
    drafts: U32
    vocab: U32
    extra_bytes: U32 = 0
    ring_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 16 << 20


class EngineIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who connects: a new session of the same name and rank, and user, ends the older ones."""

    name: Text
    rank: U32 = 0
    pid: U32 = 0


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="HELLO"):
    """
    ``spin_us`` and ``nap_us`` are hints for this session's waits, in us; the daemon keeps to its own bounds.

    ``echo_us``: a session for a self-test, which no worker hears of: the daemon answers each round itself, after so long, with ids that
    follow from the rows it finds (native/echo.h).
    """

    protocol: Version
    layout_hash: Hex64
    geometry: Geometry
    deadline_ms: Annotated[float, msgspec.Meta(ge=1, le=60_000)]
    model: Text
    engine: EngineIdentity
    spin_us: Microseconds | None = None
    nap_us: Microseconds | None = None
    echo_us: Microseconds | None = None


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="WELCOME"):
    """``metrics`` is ``http://host:port/metrics``, or None where the daemon serves none."""

    session: Hex64
    pid: U32
    version: Text
    network_timeout_ms: Milliseconds
    metrics: Text | None = None


class Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="REFUSED"):
    """``code`` is for programs (``protocol``, ``layout``, ``geometry``, ...), ``reason`` for people: what to do."""

    code: Text
    reason: Annotated[str, msgspec.Meta(max_length=2048)]


class Create(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="CREATE"):
    """The engine asks for a new region."""


class Attach(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ATTACH"):
    """The engine hands a lost region over (its memfd rides along); rounds go on at ``base`` + 1."""

    base: U32


class Region(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="REGION"):
    """The daemon's new region; its memfd rides along."""

    bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class Ready(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="READY"):
    """The round loop runs. ``locked``: the daemon's map is locked in memory, else ``lock_reason`` says why not."""

    locked: bool
    lock_reason: Text | None = None


class Draining(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="DRAINING"):
    """Planned: no new rounds, a loss that follows costs nothing."""

    reason: Text


class Resumed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="RESUMED"):
    """Draining is over."""


class Goodbye(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="GOODBYE"):
    """The engine is done: everything it submitted is consumed."""


class Bye(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="BYE"):
    """The daemon has let go of the region; it closes the socket next."""


class OperatorHello(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="OPERATOR"):
    """In the place of HELLO: who connects is no engine but somebody who looks after the daemon."""

    protocol: Version


class SwitchWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="SWITCH_WORKER"):
    """The worker endpoints from now on, the most preferred one first."""

    endpoints: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=MAX_ENDPOINTS)]


class StatusRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="STATUS_REQUEST"):
    """Asks how the daemon is."""


class Drain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="DRAIN"):
    """No new rounds and no new sessions until RESUME; ``reason`` is what engines and people are told."""

    reason: Text


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="RESUME"):
    """Rounds and sessions again."""


class Reload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="RELOAD"):
    """Read the configuration again, as at SIGHUP."""


class DumpRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="DUMP_REQUEST"):
    """Asks for a session's last ``rounds`` rounds."""

    session: Hex64
    rounds: Annotated[int, msgspec.Meta(ge=1, le=256)]


class SessionStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """
    One session: ``seconds`` old, ``round`` is the last one that was retired.

    ``link``: none, connecting, opening, up, refused. ``breaker``: closed, open, half_open. ``worker`` is what the worker calls
    itself, None where none has answered yet. ``beating``: the round loop is seen to run.
    """

    session: Hex64
    engine: Text
    rank: U32
    pid: U32
    seconds: float
    round: U32
    link: Text
    endpoint: Text
    worker: Text | None
    breaker: Text
    beating: bool


class Status(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="STATUS"):
    """
    The daemon: ``seconds`` old; ``endpoint`` is the one of ``endpoints`` (in order of preference) in use.

    ``draining`` also while it ends. ``reasons``: why it is not ``healthy``; ``notes``: what is worth knowing all the same.
    """

    pid: U32
    version: Text
    seconds: float
    endpoint: Text
    endpoints: tuple[Text, ...]
    draining: bool
    healthy: bool
    reasons: tuple[Text, ...]
    notes: tuple[Text, ...]
    sessions: tuple[SessionStatus, ...]


class RoundRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """
    A finished round from the engine's flight recorder: short on the wire, since many go into one message.

    ``submitted_ns`` is CLOCK_MONOTONIC; the other times are ns since then, None where it did not happen: the rows were
    ``gathered``, the daemon had ``seen`` that, began to ``send``, had ``sent``, the worker had ``replied``, it was ``decided``.
    """

    round: U32
    verdict: Text
    context_only: bool
    n_requests: U32
    n_rows: U32
    submitted_ns: int
    gathered_ns: int | None
    seen_ns: int | None
    send_ns: int | None
    sent_ns: int | None
    replied_ns: int | None
    decided_ns: int | None


class Dump(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="DUMP"):
    """A session's last rounds, the oldest first."""

    session: Hex64
    engine: Text
    rank: U32
    records: tuple[RoundRecord, ...]


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="DONE"):
    """What the operator asked for is done; ``text`` says for people how things stand."""

    text: Annotated[str, msgspec.Meta(max_length=2048)]


FromEngine = Hello | Create | Attach | Goodbye
FromDaemon = Welcome | Refused | Region | Ready | Draining | Resumed | Bye
FromOperator = OperatorHello | SwitchWorker | StatusRequest | Drain | Resume | Reload | DumpRequest
ToOperator = Done | Status | Dump | Refused
ToDaemon = FromEngine | FromOperator
Message = ToDaemon | FromDaemon | ToOperator
