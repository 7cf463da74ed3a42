# SPDX-License-Identifier: Apache-2.0
"""From a socket's path to one session on a region of its own. A Shim does the same again and again, in its keeper."""

from __future__ import annotations

import os
import time

from pathlib import Path

from engine_shim.errors import HandshakeFailed
from engine_shim.handshake import Bell, Handshake, patient_until, reach
from engine_shim.mode import Mode
from engine_shim.options import SessionOptions
from engine_shim.region import Region
from engine_shim.session import Session, SessionTerms
from engine_shim.stream import Stream
from engine_shim.trust import trusted_uids
from hostflag import geometry as geometries
from hostflag.messages import PROTOCOL_VERSION, EngineIdentity, Geometry, Hello


def connect(
    path: str | os.PathLike[str],
    *,
    geometry: Geometry,
    model: str,
    engine: EngineIdentity,
    stream: Stream,
    deadline_ms: float = 200.0,
    timeout_s: float = 5.0,
    mode: Mode = Mode.ASYNC,
    options: SessionOptions | None = None,
    bell: Bell | None = None,
) -> Session:
    """
    Return a session with the daemon at ``path``. Blocks up to ``timeout_s``: never call it on the engine thread.

    ``stream`` must outlive the session. Raises DaemonUnreachable, ConnectionRefusedByDaemon or HandshakeFailed; then nothing is
    left behind. ``bell``: a shim's; its self-test is Interrupted by it.
    """
    options = options or SessionOptions()
    until = time.monotonic() + timeout_s
    hello = hello_of(geometry, model, engine, deadline_ms, echo_us=options.echo_us)
    patience = patient_until(until) if bell is None else bell.patient_until(until)
    channel = reach(Path(path), timeout_s)
    try:
        with Handshake(channel, hello, patience, trusted_uids(Path(path), options.daemon_uids)) as handshake:
            welcome = handshake.greet()
            fd = handshake.bring(options.base) if options.base else handshake.create()
            try:
                region = Region(fd, stream, geometry, options.backlog(geometry))
            finally:
                os.close(fd)  # the map stays
            try:
                terms = SessionTerms(deadline_ms=deadline_ms, mode=mode, options=options, owns_region=True)
                return Session(region, channel, welcome=welcome, ready=handshake.ready(), stream=stream, terms=terms)
            except BaseException:
                region.close()
                raise
    except BaseException:
        channel.close()
        raise


def hello_of(
    geometry: Geometry, model: str, engine: EngineIdentity, deadline_ms: float, *,
    spin_us: float | None = None, nap_us: float | None = None, echo_us: float | None = None,
) -> Hello:  # fmt: skip
    """Return the HELLO of this build. Raises HandshakeFailed where the geometry is out of bounds."""
    if reason := geometries.fault(geometry):
        raise HandshakeFailed(f"the geometry is out of bounds: {reason}")
    return Hello(
        protocol=PROTOCOL_VERSION,
        layout_hash=geometries.layout_hash(),
        geometry=geometry,
        deadline_ms=deadline_ms,
        model=model,
        engine=engine,
        spin_us=spin_us,
        nap_us=nap_us,
        echo_us=echo_us,
    )
