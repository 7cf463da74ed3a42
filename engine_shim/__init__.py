# SPDX-License-Identifier: Apache-2.0
"""
The engine side: connect to a daemon, submit a step's rows, take its drafts. Imports no CUDA library and no numpy.

Device memory and kernels are addresses; a stream is whatever runs them in order (here the soft stream).
"""

from __future__ import annotations

from engine_shim.batch import REQUEST_FIELDS, Batch
from engine_shim.connection import connect
from engine_shim.errors import (
    ConnectionRefusedByDaemon,
    DaemonUnreachable,
    HandshakeFailed,
    SessionClosed,
    ShimError,
    StreamFault,
    StreamStuck,
    SubmitFailed,
)
from engine_shim.options import SessionOptions
from engine_shim.record import RoundRecord, RoundTable, RoundTiming, ShippedRequest
from engine_shim.session import Session
from engine_shim.softstream import SoftStream
from engine_shim.status import SessionStatus
from engine_shim.ticket import Ticket


__all__ = [
    "REQUEST_FIELDS",
    "Batch",
    "ConnectionRefusedByDaemon",
    "DaemonUnreachable",
    "HandshakeFailed",
    "RoundRecord",
    "RoundTable",
    "RoundTiming",
    "Session",
    "SessionClosed",
    "SessionOptions",
    "SessionStatus",
    "ShimError",
    "ShippedRequest",
    "SoftStream",
    "StreamFault",
    "StreamStuck",
    "SubmitFailed",
    "Ticket",
    "connect",
]
