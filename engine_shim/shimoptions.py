# SPDX-License-Identifier: Apache-2.0
"""What of a shim can be tuned; by code, or by the environment an operator sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from engine_shim import environment
from engine_shim.mode import Mode
from engine_shim.options import SessionOptions
from hostflag.defaults import ENGINE_SOCKET


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimOptions:
    """
    ``mode``, ``socket``: what a Shim takes where it is not told otherwise. ``deadline_ms``: within it a gathered round is over.

    ``strict``: Shim(...) raises where there is no session within ``start_timeout_s``; else it starts target-only and goes on
    trying. ``handshake_s``: how long a daemon may take from connect to READY. ``backoff_ms``: first and longest pause between
    two tries. ``respawns``: sessions that may be lost unplanned in ``respawn_reset_s`` seconds and are followed by another one.
    ``self_test``: a CUDA stream is tried before rounds are parked on it, for at most ``self_test_s`` seconds.
    ``regions``: how many there may be, fenced ones included; up to 16 poisoned ones do not count. ``spin_us``, ``nap_us``: hints to the daemon, None for its own.
    """

    mode: Mode = Mode.ASYNC
    socket: Path = Path(ENGINE_SOCKET)
    deadline_ms: float = 200.0
    strict: bool = False
    start_timeout_s: float = 5.0
    handshake_s: float = 2.0
    backoff_ms: tuple[float, float] = (10.0, 200.0)
    respawns: int = 3
    respawn_reset_s: float = 3600.0
    self_test: bool = True
    self_test_s: float = 15.0
    regions: int = 4
    spin_us: float | None = None
    nap_us: float | None = None
    session: SessionOptions = field(default_factory=SessionOptions)

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> ShimOptions:
        """
        Return the options that environment variables (environment.py) ask for; None reads ``os.environ``.

        Raises ValueError naming variable, value and what is allowed.
        """
        return cls(**environment.read(variables))
