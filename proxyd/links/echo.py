# SPDX-License-Identifier: Apache-2.0
"""The link of an echo session: to nobody. An engine's self-test measures what its device and this daemon do, without a network."""

from __future__ import annotations

import os

from typing import TYPE_CHECKING, Final

from proxyd._daemon import ffi, lib
from proxyd.links.link import max_message_bytes
from proxyd.sessions.roundloop import EventKind


if TYPE_CHECKING:
    from hostflag.messages import Geometry
    from proxyd.sessions.roundloop import LoopEvent, RoundLoop


ECHO: Final = "echo"
_TAG: Final = 1


class EchoKeeper:
    """In the place of a LinkKeeper. ``delay_us``: how long an answer takes. Raises OSError out of memory or descriptors."""

    endpoint: Final = ECHO
    why: Final = ""

    def __init__(self, loop: RoundLoop, geometry: Geometry, delay_us: float, *, opening: bytes) -> None:
        self.worker: str | None = ECHO
        self._loop = loop
        self._geometry = geometry
        self._delay_ns = round(delay_us * 1e3)
        self._opening = opening

    def start(self) -> None:
        transport = ffi.new("struct hfd_transport **")
        most = max_message_bytes(self._geometry)
        result = lib.hfd_echo_open(self._delay_ns, most, self._geometry.vocab, transport)
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        try:
            self._loop.link(transport[0], _TAG, self._opening)
        except OSError:
            lib.hfd_echo_discard(transport[0])
            raise

    def take(self, event: LoopEvent) -> None:
        """Give the loop another link where it wants one."""
        if event.kind is EventKind.LINK_WANTED:
            self.start()

    def stop(self) -> None:
        """Nothing is to be stopped: the loop frees its link."""

    def close(self) -> None:
        """Nothing is left to be closed."""
