# SPDX-License-Identifier: Apache-2.0
"""What a shim needs of a stream: the soft stream is one, a CUDA stream another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Stream(Protocol):
    """
    A FIFO that somebody else runs.

    ``async_refusal``: why it cannot wait on a word, so that the engine thread has to; None: it can. ``untried``: whether that is to
    be proven by a self-test before the first round is parked on it.
    """

    async_refusal: str | None
    untried: bool

    def hold(self) -> tuple[Any, Callable[[], None]]:
        """
        Return its ``struct hfe_stream *``, which stays until the function beside it is called (twice is harmless).

        Raises StreamStuck after close.
        """

    @property
    def kept(self) -> int:
        """How many regions were made known to it, ever."""

    @property
    def fault(self) -> str | None:
        """What the device's driver last failed with, in its own words."""
