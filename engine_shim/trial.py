# SPDX-License-Identifier: Apache-2.0
"""How a shim's rounds run: as was asked, unless the stream or its self-test says that they cannot be parked there."""

from __future__ import annotations

import logging

from pathlib import Path
from typing import Final

from engine_shim.cudastream import CudaStream
from engine_shim.errors import AsyncRefused
from engine_shim.handshake import Bell
from engine_shim.mode import Mode
from engine_shim.saying import say
from engine_shim.selftest import SelfTest
from engine_shim.shimoptions import ShimOptions
from engine_shim.stream import Stream
from hostflag.messages import EngineIdentity, Geometry


REGISTRATION: Final = "registration"  # the self-test's step


class Trial:
    """
    ``mode``: how rounds run by what is known. An untried stream is tried with the first daemon there is, before the first session.

    Raises AsyncRefused where the stream refuses at once and ``options.strict``.
    """

    def __init__(
        self,
        stream: Stream,
        asked: Mode,
        options: ShimOptions,
        *,
        geometry: Geometry,
        model: str,
        engine: EngineIdentity,
    ) -> None:
        self.mode = asked
        self._stream = stream
        self._options = options
        self._geometry = geometry
        self._model = model
        self._engine = engine
        self._test: SelfTest | None = None
        if asked is Mode.ASYNC and stream.async_refusal is not None:
            self._refused()

    @property
    def refusal(self) -> str | None:
        """Why rounds cannot be parked; None where nothing speaks against it."""
        return self._stream.async_refusal

    @property
    def doing(self) -> str | None:
        """What the self-test is at; None where there is none under way."""
        test = self._test
        return None if test is None else f"trying the stream (self-test, at: {test.doing})"

    def settle(self, path: Path, bell: Bell) -> None:
        """
        Try the stream with the daemon at ``path`` if that is due. The keeper's thread; it takes a moment, and ``bell`` interrupts it.

        Raises AsyncRefused where it fails and ``options.strict``; and whatever says that there is no daemon to try it with.
        """
        stream = self._stream
        if self.mode is Mode.SYNC or not self._options.self_test or not isinstance(stream, CudaStream):
            return
        if stream.untried:
            self._try(stream, path, bell)
        if stream.async_refusal is not None:
            self._refused()

    def _try(self, stream: CudaStream, path: Path, bell: Bell) -> None:
        self._test = test = SelfTest(
            stream,
            path,
            geometry=self._geometry,
            model=self._model,
            engine=self._engine,
            limit_s=self._options.self_test_s,
            deadline_ms=self._options.deadline_ms,
            options=self._options.session,
            bell=bell,
        )
        try:
            report = test.run()
        finally:
            self._test = None
        stream.untried = False
        if report.passed:
            took_ms = sum(step.ms for step in report.steps)
            text = "self-test passed on %s in %.0f ms: rounds are parked on the stream"
            say(logging.INFO, text, report.device, took_ms)
            return
        stream.async_refusal = f"the self-test failed: {report.reason}"
        if report.steps and report.steps[-1].name == REGISTRATION:
            # Synchronous rounds need no registration.
            stream.unregistered()

    def _refused(self) -> None:
        if self._options.strict:
            raise AsyncRefused(f"rounds cannot be asynchronous: {self.refusal}")
        say(logging.WARNING, "rounds are synchronous: %s", self.refusal)
        self.mode = Mode.SYNC
