# SPDX-License-Identifier: Apache-2.0
"""The worker link's CURVE keys: the daemon's own pair, and the public key that a worker must have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from hostflag.keys import KeyFault, SecretKey, read_public, read_secret
from proxyd.errors import StartError


if TYPE_CHECKING:
    from proxyd.config.settings import Settings


class Curve:
    """Every worker of this daemon has the same key pair: ``server`` is its public half, in Z85."""

    def __init__(self, own: SecretKey, server: bytes) -> None:
        self.public = own.public.decode()  # what a worker has to allow
        self._own = own
        self._server = server

    def use(self, dealer: zmq.Socket[Any]) -> None:
        """Have ``dealer``, not connected yet, speak to nobody but a worker with that key."""
        self._own.use(dealer)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, self._server)


def curve_of(settings: Settings) -> Curve | None:
    """Return what the settings' files hold, None where they name none. Raises StartError with the reason."""
    own, server = settings.curve_secret_key_file, settings.curve_server_key_file
    if own is None and server is None:
        return None
    if own is None or server is None:
        raise StartError(
            "worker.curve_secret_key_file (the daemon's) and worker.curve_server_key_file (the worker's public key) go together: "
            "set both, or neither"
        )
    return _read(own, server)


def _read(own: Path, server: Path) -> Curve:
    if not zmq.has("curve"):
        raise StartError("this libzmq was built without CURVE: install pyzmq's own wheel, or set no curve keys")
    try:
        return Curve(read_secret(own), read_public(server))
    except KeyFault as fault:
        raise StartError(f"cannot use the worker link's keys: {fault}") from fault
