# SPDX-License-Identifier: Apache-2.0
"""
The engine side: connect to a daemon, submit a step's rows, take its drafts. Imports no CUDA library and no numpy.

Device memory is addresses, or arrays that say theirs; a stream is whatever runs things in order: a CUDA stream, or the soft stream.
"""

from __future__ import annotations

from engine_shim.batch import REQUEST_FIELDS, Batch
from engine_shim.connection import connect
from engine_shim.cudadriver import CudaDriver
from engine_shim.cudastream import CudaStream
from engine_shim.errors import (
    AsyncRefused,
    ConnectionRefusedByDaemon,
    DaemonUnreachable,
    DeviceRefused,
    DriverFault,
    HandshakeFailed,
    NoRegion,
    SessionClosed,
    ShimError,
    StreamFault,
    StreamRefused,
    StreamStuck,
    SubmitFailed,
)
from engine_shim.mode import Mode
from engine_shim.options import SessionOptions
from engine_shim.record import RoundRecord, RoundTable, RoundTiming, ShippedRequest
from engine_shim.session import Session
from engine_shim.shim import Shim
from engine_shim.shimoptions import ShimOptions
from engine_shim.shimstatus import Recoveries, RegionCounts, ShimStatus
from engine_shim.softstream import SoftStream
from engine_shim.status import SessionStatus
from engine_shim.stream import Stream
from engine_shim.ticket import RoundRef, Ticket


__all__ = [
    "REQUEST_FIELDS",
    "AsyncRefused",
    "Batch",
    "ConnectionRefusedByDaemon",
    "CudaDriver",
    "CudaStream",
    "DaemonUnreachable",
    "DeviceRefused",
    "DriverFault",
    "HandshakeFailed",
    "Mode",
    "NoRegion",
    "Recoveries",
    "RegionCounts",
    "RoundRecord",
    "RoundRef",
    "RoundTable",
    "RoundTiming",
    "Session",
    "SessionClosed",
    "SessionOptions",
    "SessionStatus",
    "Shim",
    "ShimError",
    "ShimOptions",
    "ShimStatus",
    "ShippedRequest",
    "SoftStream",
    "Stream",
    "StreamFault",
    "StreamRefused",
    "StreamStuck",
    "SubmitFailed",
    "Ticket",
    "connect",
]
