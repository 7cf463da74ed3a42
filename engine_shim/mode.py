# SPDX-License-Identifier: Apache-2.0
"""How rounds run: parked on the stream, or with the engine thread waiting for them."""

from __future__ import annotations

import enum


class Mode(enum.Enum):
    """
    ASYNC: ``submit`` enqueues and returns; the stream waits for the reply.

    SYNC: ``submit`` waits, bounded by the deadline, over the same words, region and daemon. For a device that has no memory
    operations a stream could wait with.
    """

    ASYNC = "async"
    SYNC = "sync"
