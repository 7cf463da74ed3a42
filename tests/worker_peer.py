# SPDX-License-Identifier: Apache-2.0
"""What stands in for a daemon in the reference worker's tests: a DEALER that speaks the contract, and a worker process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import zmq

from hostflag.control import Control, Open, Opened, SessionGeometry
from hostflag.messages import EngineIdentity
from hostflag.wire import (
    PROTOCOL,
    Header,
    Kind,
    Reply,
    Request,
    Round,
    decode_control,
    decode_header,
    decode_reply,
    encode_control,
    encode_header,
    encode_round,
)


ROOT: Final = Path(__file__).resolve().parent.parent
PATIENCE_MS: Final = 20_000
GEOMETRY: Final = SessionGeometry(row_bytes=64, window=8, drafts=3, vocab=1000, max_requests=4, state_slots=8)


class Ask(NamedTuple):
    """A request of a round to be made: its rows are made up from the seed, its tokens unless given."""

    slot: int
    generation: int = 1
    positions: Sequence[int] = ()
    anchor: int = -1
    tokens: Sequence[int] | None = None


def opening(
    geometry: SessionGeometry = GEOMETRY, *, name: str = "engine", rank: int = 0, protocol: int = PROTOCOL
) -> Open:
    return Open(protocol=protocol, engine=EngineIdentity(name=name, rank=rank), model="model", geometry=geometry)


def make_round(
    asks: Sequence[Ask],
    *,
    session: int = 1,
    number: int = 1,
    context_only: bool = False,
    geometry: SessionGeometry = GEOMETRY,
    seed: int = 0,
) -> Round:
    """Return a round whose rows are random bytes."""
    rng = np.random.default_rng(seed)
    positions = [position for ask in asks for position in ask.positions]
    tokens: list[int] = []
    requests: list[Request] = []
    for ask in asks:
        draft = ask.anchor >= 0
        requests.append(Request(ask.slot, ask.generation, len(tokens), len(ask.positions), draft, ask.anchor))
        made_up = rng.integers(0, geometry.vocab, len(ask.positions)).tolist()
        tokens += made_up if ask.tokens is None else ask.tokens
    rows = rng.integers(0, 256, len(positions) * geometry.row_bytes, dtype=np.uint8)
    return Round(
        session,
        number,
        context_only,
        geometry.row_bytes,
        geometry.drafts,
        requests,
        memoryview(np.array(positions, dtype=np.int64).tobytes()).cast("q"),
        memoryview(np.array(tokens, dtype=np.int32).tobytes()).cast("i"),
        memoryview(rows.tobytes()),
    )


@dataclass
class Peer:
    """One connection to a worker, with one session on it."""

    socket: zmq.Socket[bytes]
    session: int = 1
    geometry: SessionGeometry = GEOMETRY
    name: str = "engine"
    number: int = field(default=0, init=False)

    def open(self) -> Control:
        """Open the session; return the answer."""
        self.socket.send(encode_control(self.session, opening(self.geometry, name=self.name)))
        return self.control()

    def opened(self) -> Opened:
        """Open the session, which has to work."""
        answer = self.open()
        assert isinstance(answer, Opened), answer
        return answer

    def receive(self) -> tuple[Header, bytes]:
        part = self.socket.recv()
        assert not self.socket.get(zmq.RCVMORE)
        return decode_header(part), part

    def control(self) -> Control:
        header, part = self.receive()
        assert header.session == self.session
        return decode_control(header, part)

    def send(self, *asks: Ask, context_only: bool = False, seed: int = 0) -> Round:
        """Send a round; return it."""
        self.number += 1
        message = make_round(
            asks, session=self.session, number=self.number, context_only=context_only, geometry=self.geometry, seed=seed
        )
        self.socket.send_multipart(encode_round(message))
        return message

    def reply(self) -> Reply:
        """Return the reply to the newest round."""
        header, part = self.receive()
        assert (header.kind, header.session, header.round) == (Kind.REPLY, self.session, self.number)
        return decode_reply(header, part, self.geometry)

    def draft(self, *asks: Ask, seed: int = 0) -> Reply:
        """Send a round and return its reply."""
        self.send(*asks, seed=seed)
        return self.reply()

    def ping(self, number: int = 77) -> Header:
        self.socket.send(encode_header(Kind.PING, self.session, number))
        return self.receive()[0]


@dataclass
class Worker:
    """A running worker process. ``errors``: the file that gets its stderr."""

    process: subprocess.Popen[bytes]
    endpoint: str
    errors: Path

    def log(self) -> str:
        return self.errors.read_text(encoding="utf-8")

    def stop(self) -> int:
        """End it by SIGTERM; return its exit status."""
        self.process.terminate()
        return self.process.wait(timeout=PATIENCE_MS / 1000)


@contextlib.contextmanager
def running_worker(
    directory: Path, *flags: str, path: Path = ROOT, endpoint: str = "tcp://127.0.0.1:0"
) -> Iterator[Worker]:
    """Run a worker in ``path`` until the block ends."""
    where, errors = directory / "endpoint", directory / "worker.log"
    command = [sys.executable, "-m", "refworker", "--bind", endpoint, "--endpoint-file", str(where), *flags]
    with errors.open("wb") as log:
        process = subprocess.Popen(command, stderr=log, cwd=path, env=environment())
    try:
        until = time.monotonic() + PATIENCE_MS / 1000
        while not where.exists():
            assert process.poll() is None, errors.read_text(encoding="utf-8")
            assert time.monotonic() < until, "the worker does not get ready"
            time.sleep(0.01)
        yield Worker(process, where.read_text(encoding="utf-8").strip(), errors)
    finally:
        process.kill()
        process.wait()


def environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@contextlib.contextmanager
def connected(endpoint: str, *sessions: int, geometry: SessionGeometry = GEOMETRY) -> Iterator[list[Peer]]:
    """Connect one peer a session, each with an engine name of its own."""
    with zmq.Context() as context:
        peers = []
        for session in sessions:
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
            socket.setsockopt(zmq.SNDTIMEO, PATIENCE_MS)
            socket.connect(endpoint)
            peers.append(Peer(socket, session, geometry, name=f"engine {session}"))
        try:
            yield peers
        finally:
            for peer in peers:
                peer.socket.close()
