# SPDX-License-Identifier: Apache-2.0
"""What the daemon is told on its command line: parsed, checked and frozen."""

from __future__ import annotations

import argparse
import math
import socket

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hostflag.defaults import ENGINE_SOCKET, WORKER_ENDPOINT
from hostflag.version import VERSION
from proxyd.endpoints import checked_endpoint, checked_endpoints, host_and_port


MAX_SOCKET_PATH_BYTES: Final = 107  # sun_path less its NUL


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where /metrics is served. ``port`` 0 picks a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times carry their unit in the name. ``workers``: the most preferred endpoint first. ``metrics`` None serves none."""

    socket: Path
    workers: tuple[str, ...]
    metrics: MetricsAddress | None
    network_timeout_ms: float = 150.0
    spin_us: float = 50.0
    nap_us: float = 20.0
    breaker_failures: int = 3
    breaker_cool_ms: float = 500.0
    log_level: str = "info"
    log_format: str = "auto"


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Returns the settings; leaves through ``SystemExit`` (2, with the reason on stderr) where they are wrong."""
    parser = _parser()
    values = vars(parser.parse_args(argv))
    try:
        workers = checked_endpoints(values.pop("workers", [WORKER_ENDPOINT]))
    except ValueError as fault:
        parser.error(f"argument --worker: {fault}")
    return Settings(workers=workers, **values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dsv41-proxyd",
        description="Does the draft rounds of GPU engines: takes their rows from a shared region, gets drafts from a worker.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--socket",
        metavar="PATH",
        type=_socket_path,
        default=ENGINE_SOCKET,
        help="where engines connect",
    )
    add(
        "--worker",
        metavar="ENDPOINT",
        type=_endpoint,
        action="append",
        dest="workers",
        default=argparse.SUPPRESS,
        help=f"the worker, tcp:// or ipc://; again for others to fall back on, the most preferred first (default: {WORKER_ENDPOINT})",
    )
    add(
        "--metrics",
        metavar="HOST:PORT|off",
        type=_metrics,
        default="127.0.0.1:9741",
        help="where /metrics is; port 0 picks one",
    )
    add(
        "--network-timeout-ms",
        metavar="MS",
        type=_number(1, 60_000),
        default=150.0,
        help="how long a round waits for its reply",
    )
    add(
        "--spin-us", metavar="US", type=_number(0, 10_000), default=50.0, help="the longest spin while a gather is near"
    )
    add("--nap-us", metavar="US", type=_number(1, 10_000), default=20.0, help="the shortest nap while a gather is far")
    add(
        "--breaker-failures",
        metavar="N",
        type=_count(1000),
        default=3,
        help="so many rounds in a row without a good reply open the circuit breaker; 0: never",
    )
    add(
        "--breaker-cool-ms",
        metavar="MS",
        type=_number(1, 4000),
        default=500.0,
        help="how long it stays open at first; doubled, up to 4 s, while the worker goes on failing",
    )
    add(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="least level that is written"
    )
    add(
        "--log-format",
        choices=("auto", "console", "json"),
        default="auto",
        help="auto: console on a terminal, else json",
    )
    parser.add_argument("--version", action="version", version=f"dsv41-proxyd {VERSION}")
    return parser


def _socket_path(text: str) -> Path:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("a socket needs a path")
    path = Path(text).absolute()
    if len(bytes(path)) > MAX_SOCKET_PATH_BYTES:
        raise argparse.ArgumentTypeError(
            f"{path} is longer than the {MAX_SOCKET_PATH_BYTES} bytes that a Unix socket's path may have"
        )
    return path


def _endpoint(text: str) -> str:
    try:
        return checked_endpoint(text)
    except ValueError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from fault


def _metrics(text: str) -> MetricsAddress | None:
    if text == "off":
        return None
    try:
        host, port = host_and_port(text, text)
    except ValueError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from fault
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return MetricsAddress(host, port)
    if host == "localhost":
        return MetricsAddress("127.0.0.1", port)
    raise argparse.ArgumentTypeError(f"{text!r}: the host must be an address, such as 127.0.0.1 or [::1]; or say off")


def _number(least: float, most: float) -> Callable[[str], float]:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return value

    return convert


def _count(most: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) > most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {most}")
        return int(text)

    return convert
