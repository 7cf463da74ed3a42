# SPDX-License-Identifier: Apache-2.0
"""Steps without a session: no round, legal ids."""

from __future__ import annotations

import os

from typing import Any

import msgspec

from engine_shim._engine import ffi, lib
from engine_shim.batch import Batch
from engine_shim.errors import ShimError, SubmitFailed
from engine_shim.status import SessionStatus, status_of
from engine_shim.stream import Stream
from engine_shim.ticket import Ticket, ticket_of
from hostflag.messages import Geometry


class Spare:
    """Takes steps while there is nobody to draft with. The engine thread's. Raises ShimError where device memory is short."""

    def __init__(self, stream: Stream, geometry: Geometry) -> None:
        spare = ffi.new("struct hfe_spare **")
        c_geometry = ffi.new("struct hf_geometry *", msgspec.structs.asdict(geometry))
        c_stream, self._let_go = stream.hold()
        result = lib.hfe_spare_open(c_stream, c_geometry, spare)
        if result < 0:
            self._let_go()
            raise ShimError(f"no device memory for steps without a session: {os.strerror(-result)}")
        self._spare: Any = spare[0]
        self._stream = stream
        self._ticket: Any = ffi.new("struct hfe_ticket *")
        self._ticket_buffer: Any = ffi.buffer(self._ticket)

    def submit(self, batch: Batch) -> Ticket:
        """Enqueue legal ids. Raises SubmitFailed."""
        result = lib.hfe_spare_submit(self._spare, batch.c, self._ticket)
        if result < 0:
            raise SubmitFailed.of(-result, self._stream.fault, lost=False)
        return ticket_of(self._ticket_buffer, None)

    def status(self) -> SessionStatus:
        """Return what was skipped; every word is 0."""
        status = ffi.new("struct hfe_status *")
        lib.hfe_spare_status_of(self._spare, status)
        return status_of(status)

    def close(self) -> None:
        """Free it. Nobody submits any more. Twice is harmless."""
        spare, self._spare = self._spare, None
        if spare is not None:
            lib.hfe_spare_close(spare)
        self._let_go()
