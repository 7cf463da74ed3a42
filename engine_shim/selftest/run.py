# SPDX-License-Identifier: Apache-2.0
"""The self-test as a whole: step by step in a thread of its own, so that whatever does not come back is left behind there."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import logging
import threading
import time

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from engine_shim._engine import lib
from engine_shim.connection import connect
from engine_shim.cudastream import CudaStream
from engine_shim.errors import (
    DeviceRefused,
    DriverFault,
    ShimError,
    StreamFault,
    StreamRefused,
    StreamStuck,
    SubmitFailed,
)
from engine_shim.handshake import Bell, Interrupted
from engine_shim.kept import keep
from engine_shim.options import SessionOptions
from engine_shim.saying import say
from engine_shim.selftest.arena import Arena
from engine_shim.selftest.report import Latency, Report, Step, image
from engine_shim.selftest.rounds import Failed, NothingLearned, Rounds, Stuck
from engine_shim.session import Session
from hostflag.messages import EngineIdentity, Geometry


LANES: Final = 4
REQUESTS: Final = 3
ROWS_EACH: Final = 6
LOAD_MS: Final = 30.0  # for how long a round is parked beside other streams, and while a module is loaded
NEIGHBOURS: Final = 8
DEADLINE_MS: Final = 10_000.0  # no watchdog is to help a round along
CLOSE_S: Final = 1.0
SHORT_OF: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # this process or machine, not the device
ATTRIBUTES: Final = {
    "HOST_REGISTER_SUPPORTED": lib.HFC_HOST_REGISTER,
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM": lib.HFC_HOST_POINTER,
    "CAN_USE_64_BIT_STREAM_MEM_OPS": lib.HFC_STREAM_MEM_OPS,
    "CAN_FLUSH_REMOTE_WRITES": lib.HFC_FLUSH_REMOTE_WRITES,
    "UNIFIED_ADDRESSING": lib.HFC_UNIFIED_ADDRESSING,
    "INTEGRATED": lib.HFC_INTEGRATED,
}


class SelfTest:
    """
    On a stream of its own beside ``stream``, whose context it uses, with echo sessions of the daemon at ``path``.

    ``rounds``: patterned ones. ``timed``: timed ones of each kind; 0: no latencies. ``limit_s``: after so long it has failed, whatever
    it is at. ``bell``: ends it before. ``doing``: what it is at. Nothing is launched: copies, writes and waits alone.
    """

    def __init__(
        self,
        stream: CudaStream,
        path: Path,
        *,
        geometry: Geometry,
        model: str,
        engine: EngineIdentity,
        rounds: int = 64,
        timed: int = 0,
        limit_s: float = 15.0,
        deadline_ms: float = DEADLINE_MS,
        options: SessionOptions | None = None,
        bell: Bell | None = None,
    ) -> None:
        self._of = stream
        self._bell = bell
        self._path = path
        self._geometry = msgspec.structs.replace(geometry, extra_bytes=0)
        self._model = model
        self._engine = msgspec.structs.replace(engine, name=f"{engine.name[:200]} (self-test)")
        self._rounds = rounds
        self._timed = timed
        self._limit_s = limit_s
        self._deadline_ms = max(
            deadline_ms, DEADLINE_MS
        )  # it is to be above the daemon's network timeout, as the engine's is
        self._options = options or SessionOptions()
        self._steps: list[Step] = []
        self._latencies: dict[str, Latency] = {}
        self._daemon: dict[str, str] = {}
        self._network_timeout_ms = 0.0
        self.doing = "start"
        self._reason: str | None = None
        self._stuck = False
        self._fault: ShimError | Interrupted | None = None  # nothing was learned: no daemon, or no time

    def run(self) -> Report:
        """
        Return what was found, within ``limit_s`` and a moment.

        Raises DaemonUnreachable, ConnectionRefusedByDaemon or HandshakeFailed where there is no daemon to do it with, or none to its end:
        then nothing was learned of the device. Nor was it where the bell rang: raises Interrupted, once all is taken down that can be.
        """
        thread = threading.Thread(target=self._run, name="hf-selftest", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise NothingLearned(
                f"no thread for the self-test: {error}. Raise the limit of threads (RLIMIT_NPROC)"
            ) from error
        thread.join(self._limit_s)
        if thread.is_alive():
            self._reason = f"the self-test did not come back within {self._limit_s:g} s, during: {self.doing}"
            self._stuck = True
        elif self._fault is not None:
            raise self._fault
        if self._stuck:
            text = "self-test: %s; what the device may still touch is kept until the process ends"
            say(logging.ERROR, text, self._reason)
        if self._over():
            raise Interrupted
        return self._report()

    def _over(self) -> bool:
        return self._bell is not None and self._bell.over()

    def _run(self) -> None:
        try:
            self._all()
        except Stuck as failed:
            self._reason, self._stuck = str(failed), True
        except StreamStuck as failed:  # what was closed after it
            self._reason, self._stuck = f"{self.doing}: {failed}", True
        except (Failed, DeviceRefused, DriverFault, StreamRefused, StreamFault, SubmitFailed) as failed:
            self._reason = str(failed)
        except (ShimError, Interrupted) as fault:
            self._fault = fault
        except Exception as fault:  # noqa: BLE001 - whatever it is, no round is parked
            if isinstance(fault, MemoryError) or (isinstance(fault, OSError) and fault.errno in SHORT_OF):
                self._fault = NothingLearned(
                    f"the self-test did not get past {self.doing}, which says nothing of the device: {fault!r}"
                )
                return
            self._reason = f"the self-test failed: {fault!r}"
            say(logging.ERROR, "the self-test failed", fault=fault)

    def _all(self) -> None:
        self._do("attributes", self._attributes)
        self._of.use()
        with self._stream() as stream:
            self._prove(stream)
            self._load(stream)

    def _prove(self, stream: CudaStream) -> None:
        with (
            self._arena(stream, ROWS_EACH) as arena,
            self._arena(stream, 0) as without_rows,
            self._session(stream, 0.0, "registration") as session,
        ):
            rounds = Rounds(stream, session, arena, arena.lanes, self._over)
            self._do("ordering", lambda: rounds.prove(self._rounds))
            if self._timed:
                self._latencies["empty round"] = rounds.measure(self._timed, empty=True)
                bare = Rounds(stream, session, without_rows, 1, self._over)
                self._latencies["without rows"] = bare.measure(self._timed)
                self._latencies[f"{arena.requests} requests"] = rounds.measure(self._timed)

    def _load(self, stream: CudaStream) -> None:
        delay_us = min(LOAD_MS, self._network_timeout_ms / 2) * 1e3
        with (
            contextlib.ExitStack() as others,
            self._arena(stream, 1) as arena,
            self._session(stream, delay_us, "delay") as session,
        ):
            rounds = Rounds(stream, session, arena, 1, self._over)
            neighbours = [others.enter_context(self._stream()) for _ in range(NEIGHBOURS)]
            self._do("other streams", lambda: rounds.pass_by(neighbours))
            self._do("module load", rounds.load_a_module)

    def _do(self, name: str, what: Callable[[], str]) -> None:
        """Do a step and note what came of it."""
        self.doing = name
        began = time.perf_counter()
        detail, passed = "", False
        try:
            detail, passed = what(), True
        except ShimError as fault:
            detail = str(fault)
            raise
        finally:
            self._steps.append(
                Step(name=name, passed=passed, detail=detail, ms=round((time.perf_counter() - began) * 1e3, 2))
            )

    def _attributes(self) -> str:
        if self._of.async_refusal is not None:
            raise Failed(self._of.async_refusal)
        return ", ".join(f"{name} {value}" for name, value in self._device_attributes().items())

    @contextlib.contextmanager
    def _session(self, stream: CudaStream, echo_us: float, step: str) -> Iterator[Session]:
        """Give an echo session; it is closed only where all is well, and else kept with what the device may touch."""
        opened: list[Session] = []

        def begin() -> str:
            session = connect(
                self._path, geometry=self._geometry, model=self._model, engine=self._engine, stream=stream,
                deadline_ms=self._deadline_ms, options=dataclasses.replace(self._options, echo_us=echo_us, base=0), bell=self._bell,
            )  # fmt: skip
            opened.append(session)
            welcome = session.welcome
            self._daemon = {"version": welcome.version, "pid": str(welcome.pid)}
            self._network_timeout_ms = welcome.network_timeout_ms
            return f"a region is registered with the device; daemon {welcome.version}"

        self._do(step, begin)
        with _unless_stuck(lambda: opened[0].close(CLOSE_S), opened[0].give_up):
            yield opened[0]

    @contextlib.contextmanager
    def _stream(self) -> Iterator[CudaStream]:
        stream = CudaStream.create(driver=self._of.driver, copies=self._of.copies)
        with _unless_stuck(lambda: stream.close(CLOSE_S)):
            yield stream

    @contextlib.contextmanager
    def _arena(self, stream: CudaStream, rows_each: int) -> Iterator[Arena]:
        requests = min(REQUESTS, self._geometry.max_requests, self._geometry.state_slots)
        lanes = min(LANES, self._geometry.slots)
        arena = Arena(stream, self._geometry, requests=requests, rows_each=rows_each, lanes=lanes)

        def close() -> None:
            if not stream.wait(stream.marker(), CLOSE_S):
                raise Stuck(f"the stream did not get past the self-test within {CLOSE_S:g} s")
            arena.close()

        with _unless_stuck(close):
            yield arena

    def _device_attributes(self) -> dict[str, int]:
        driver, device = self._of.driver, self._of.device
        return {name: driver.attribute(device, number) for name, number in ATTRIBUTES.items()}

    def _report(self) -> Report:
        driver, device = self._of.driver, self._of.device
        capability = [
            driver.attribute(device, number) for number in (lib.HFC_CAPABILITY_MAJOR, lib.HFC_CAPABILITY_MINOR)
        ]
        return Report(
            passed=self._reason is None,
            reason=self._reason,
            stuck=self._stuck,
            device=self._of.device_name,
            capability=".".join(map(str, capability)),
            driver=driver.version,
            library=driver.library,
            attributes=self._device_attributes(),
            image=image(),
            daemon=dict(self._daemon),
            steps=tuple(self._steps),
            latencies=dict(self._latencies),
            calls=driver.calls(),
            when=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        )


@contextlib.contextmanager
def _unless_stuck(close: Callable[[], None], give_up: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Close at the end what the device may touch; where it may still do so, give it up and keep it."""
    try:
        try:
            yield
        except StreamStuck:
            raise
        except Exception:
            close()  # wrong, but it moves: then it can be taken down in order
            raise
        close()
    except StreamStuck:
        give_up()
        keep(close)
        raise
