# SPDX-License-Identifier: Apache-2.0
"""The daemon: its sockets, its signals, its life from start to a clean end."""

from __future__ import annotations

import collections
import contextlib
import os
import signal

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from hostflag import logging, stderr
from hostflag.channel import ChannelClosed, ChannelTimeout, accepted_end
from hostflag.defaults import ENGINE_SOCKET
from hostflag.messages import Refused
from proxyd.config.faults import ConfigurationError, Fault
from proxyd.errors import NotNowError, StartError
from proxyd.links.reach import Reach
from proxyd.links.workers import Workers
from proxyd.operator.controls import Controls
from proxyd.operator.operators import Operator
from proxyd.service.check import links_of
from proxyd.service.events import Events
from proxyd.service.listener import Listener
from proxyd.service.signals import Signals
from proxyd.service.socketfile import SocketFile
from proxyd.service.supervision import Supervision
from proxyd.sessions.admission import Admission
from proxyd.sessions.handshake import Handshake, Terms
from proxyd.sessions.roster import Roster
from proxyd.views import http, metrics
from proxyd.views.standing import Standing


if TYPE_CHECKING:
    import socket

    from hostflag.channel import Channel
    from hostflag.messages import ToDaemon
    from proxyd.config.configuration import Configuration, Reloaded
    from proxyd.config.kinds import MetricsAddress
    from proxyd.config.settings import Settings
    from proxyd.service.activation import PassedSocket
    from proxyd.service.notify import Notifier


MAX_HANDSHAKES: Final = 64
MAX_OPERATORS: Final = 8
MAX_RELOAD_LINES: Final = 8  # in ten seconds
DRAIN_S: Final = 0.25  # at least, for engines to see that no round should follow
MOST_DRAIN_S: Final = 1.5
AFTER_TIMEOUT_S: Final = 0.05  # a round in flight ends by the network timeout, and is released a little later
SHUTDOWN_LIMIT_S: Final = 2.0
LANDING: Final = b'<!doctype html><title>dsv41-proxyd</title><h1>dsv41-proxyd</h1><p><a href="/metrics">metrics</a> <a href="/healthz">health</a></p>\n'


class Server:
    """
    A daemon from construction on: its socket and metrics port are taken. Then ``serve``, then ``close``.

    Owns ``notifier``, and ``passed``: the engine socket, where a service manager made it.

    Raises StartError where it cannot be one, with what to do.
    """

    def __init__(self, configuration: Configuration, notifier: Notifier, passed: PassedSocket | None = None) -> None:
        settings = configuration.settings
        self._configuration = configuration
        self._log: Any = structlog.get_logger()
        self._events = Events()
        self._handshakes: dict[Handshake, None] = {}
        self._operators: dict[Operator, None] = {}
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._over = False
        with contextlib.ExitStack() as stack:
            stack.callback(self._events.close)
            stack.callback(Signals(self._events, self._heed).close)
            self._workers = self._make_workers(settings, stack)
            self._roster = Roster(self._events, self._workers, settings, self._end_if_empty)
            reach = Reach(self._events, self._workers, lambda: not any(self._roster))
            stack.callback(reach.close)
            self._standing = Standing(self._roster, self._workers, reach)
            self._controls = Controls(self._roster, self._workers, self._standing, self.reload)
            # Before the metrics port: of two daemons on one socket the second hears that, not that a port is taken.
            self._file = passed or _socket_file(settings)
            stack.callback(self._file.close)
            url = self._serve_metrics(settings.metrics, stack) if settings.metrics else None
            self._terms = Terms(
                network_timeout_ms=settings.network_timeout_ms, metrics=url, admission=_admission(settings)
            )
            self._listener = Listener(self._events, self._file.listening, self._meet, self._say_fault)
            stack.callback(self._listener.close)
            self._supervision = Supervision(self._events, notifier, self._roster, self._standing)
            stack.callback(self._supervision.close)
            self._closing = stack.pop_all()
        self._drain_s = _drain_s(settings)
        self._log.info(
            "ready",
            socket=str(passed.path if passed else settings.socket),
            passed=bool(passed),
            worker=self._workers.endpoint,
            others=settings.workers[1:],
            metrics=url,
            pid=os.getpid(),
            config=str(configuration.file) if configuration.file else None,
        )

    def serve(self) -> bool:
        """Return when a signal has ended the daemon: True where every session came to its end."""
        while not self._over:
            self._events.turn()
            self._supervision.look()
            if lost := stderr.take_lost():
                self._log.error("log lines lost", lines=lost[0], reason=lost[1])
        return len(self._roster) == 0

    def close(self) -> None:
        """Let go of everything. Only after ``serve`` returned True: what a running loop uses must not be closed under it."""
        self._closing.close()
        self._log.info("ended")

    def abandon(self) -> None:
        """Leave only the sessions that did not end. Instead of ``close``; the caller then leaves the process at once."""
        self._file.close()
        self._log.error("ended by force", sessions=len(self._roster))

    def reload(self, asked_by: str) -> Reloaded:
        """Take over what has changed in the configuration, so far as that is possible, and write to the log what came of it."""
        self._supervision.reloading()
        reloaded = self._configuration.reload(self._apply)
        self._supervision.reloaded("reload refused: see the log" if reloaded.faults else "reloaded")
        self._standing.notes = reloaded.notes
        log = self._log.bind(asked_by=asked_by, rate_limited=True, rate_burst=MAX_RELOAD_LINES)
        if reloaded.faults:
            log.error("not reloaded: the configuration of before stays", faults=reloaded.faults)
        else:
            log.info(
                "reloaded", changed=list(map(str, reloaded.changed)), needs_restart=list(map(str, reloaded.restart))
            )
        return reloaded

    def _apply(self, settings: Settings, changed: frozenset[str]) -> None:
        """Put changed settings into force. What can fail comes first: a reload that fails changes nothing."""
        try:
            admission = Admission.of(settings)
        except ValueError as fault:
            raise ConfigurationError([Fault(source="security", reason=str(fault))]) from fault
        if "workers" in changed:
            try:
                self._workers.switch(settings.workers, lambda: None, "a reload")
            except StartError as fault:
                raise ConfigurationError([Fault(source="worker.endpoints", reason=str(fault))]) from fault
        logging.set_level(settings.log_level)
        self._roster.settings = settings
        self._terms = replace(self._terms, network_timeout_ms=settings.network_timeout_ms, admission=admission)
        self._drain_s = _drain_s(settings)

    def _make_workers(self, settings: Settings, stack: contextlib.ExitStack) -> Workers:
        links = links_of(settings)
        stack.callback(links.close)
        workers = Workers(self._events, links, settings.workers)
        stack.callback(workers.close)
        return workers

    def _serve_metrics(self, address: MetricsAddress, stack: contextlib.ExitStack) -> str:
        try:
            listening = http.bind(address.host, address.port)
        except OSError as fault:
            raise NotNowError(
                f"cannot serve metrics on {address}: {fault.strerror}; give another --metrics, or off"
            ) from fault
        host, port = listening.getsockname()[:2]
        pages: dict[str, http.Page] = {
            "/": lambda: http.Content("text/html; charset=utf-8", LANDING),
            "/metrics": metrics.page(self._snapshot),
            "/healthz": self._standing.page,
        }
        stack.callback(http.HttpServer(self._events, listening, pages, self._say_fault).close)
        return f"http://{type(address)(host, port)}/metrics"

    def _meet(self, connection: socket.socket) -> None:
        if len(self._handshakes) >= MAX_HANDSHAKES:
            self._make_place()
        if len(self._handshakes) < MAX_HANDSHAKES:
            handshake = Handshake(
                self._events, self._roster, self._terms, connection, on_operator=self._heed_operator, on_over=self._part
            )
            self._handshakes[handshake] = None
            return
        reason = f"{MAX_HANDSHAKES} handshakes are under way: try again"
        self._log.warning("engine refused", code="busy", reason=reason, rate_limited=True, rate_key="handshakes")
        self._outcomes["busy"] += 1
        with accepted_end(connection) as channel, contextlib.suppress(ChannelClosed, ChannelTimeout):
            channel.send(Refused(code="busy", reason=reason))

    def _make_place(self) -> None:
        """Silent connections must not keep engines out: the oldest goes. One that speaks is through within milliseconds."""
        silent = next((each for each in self._handshakes if each.silent), None)
        if silent is not None:
            silent.refuse("busy", f"{MAX_HANDSHAKES} handshakes are under way, and this one said nothing: try again")

    def _heed_operator(self, channel: Channel[ToDaemon], log: Any) -> None:
        if len(self._operators) >= MAX_OPERATORS:
            next(iter(self._operators)).close()  # the oldest
        operator = Operator(self._events, channel, self._controls, log, self._dismiss)
        self._operators[operator] = None
        operator.greet()

    def _dismiss(self, operator: Operator) -> None:
        self._operators.pop(operator, None)

    def _part(self, handshake: Handshake, outcome: str) -> None:
        del self._handshakes[handshake]
        self._outcomes[outcome] += 1

    def _heed(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            self.reload(number.name)
        elif self._standing.ending:
            self._log.warning("ending at once", signal=number.name)
            self._over = True
        else:
            self._log.info("ending", signal=number.name, sessions=len(self._roster))
            self._begin_end()

    def _begin_end(self) -> None:
        self._standing.ending = True
        self._supervision.stopping()
        self._listener.close()
        for handshake in list(self._handshakes):
            handshake.refuse("draining", "this daemon ends: connect again")
        for operator in list(self._operators):
            operator.close()
        self._roster.drain("the daemon ends")
        self._events.after(self._drain_s, lambda: self._roster.end("the daemon ends"))
        self._events.after(SHUTDOWN_LIMIT_S, self._force_end)
        self._end_if_empty()

    def _end_if_empty(self) -> None:
        if self._standing.ending and not len(self._roster):
            self._over = True

    def _force_end(self) -> None:
        self._over = True

    def _say_fault(self, fault: Exception) -> None:
        self._log.error("connection not served", reason=str(fault), rate_limited=True, exc_info=fault)

    def _snapshot(self) -> metrics.Snapshot:
        running = list(self._roster)
        # A self-test's echoes say nothing of workers.
        served = {(each.hello.engine.name, each.hello.engine.rank): each for each in running if not each.echoes}
        tally = self._roster.tally()
        tally.counters.links_barred += self._workers.barred.counted
        return metrics.Snapshot(
            tally=tally,
            workers={engine: each.worker_up for engine, each in served.items()},
            breakers={engine: each.loop.breaker_state() for engine, each in served.items()},
            worker_moves=self._workers.moves,
            ending=len(self._roster) - len(running),
            sessions_started=self._roster.started,
            handshakes=self._outcomes,
            connections=len(self._handshakes),
            reloads=self._configuration.reloads,
        )


def _admission(settings: Settings) -> Admission:
    try:
        return Admission.of(settings)
    except ValueError as fault:
        raise StartError(f"security: {fault}") from fault


def _socket_file(settings: Settings) -> SocketFile:
    # Nobody has named the default's directory, so nobody has made it, where systemd did not.
    ours = settings.socket == Path(ENGINE_SOCKET)
    return SocketFile(settings.socket, settings.socket_mode, settings.socket_group, make_directory=ours)


def _drain_s(settings: Settings) -> float:
    return min(max(DRAIN_S, settings.network_timeout_ms / 1e3 + AFTER_TIMEOUT_S), MOST_DRAIN_S)
