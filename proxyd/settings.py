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


MAX_SOCKET_PATH_BYTES: Final = 107  # sun_path less its NUL
MAX_IPC_PATH_BYTES: Final = 107


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where /metrics is served. ``port`` 0 picks a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times carry their unit in the name. ``metrics`` None serves none."""

    socket: Path
    worker: str
    metrics: MetricsAddress | None
    network_timeout_ms: float = 150.0
    spin_us: float = 50.0
    nap_us: float = 20.0
    log_level: str = "info"
    log_format: str = "auto"


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Returns the settings; leaves through ``SystemExit`` (2, with the reason on stderr) where they are wrong."""
    values = _parser().parse_args(argv)
    return Settings(**vars(values))


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
        default=WORKER_ENDPOINT,
        help="the worker, tcp:// or ipc://",
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
    add("--nap-us", metavar="US", type=_number(1, 100_000), default=20.0, help="the shortest nap while a gather is far")
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
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("tcp", "ipc"):
        raise argparse.ArgumentTypeError(f"{text!r} is no endpoint: give tcp://HOST:PORT or ipc://PATH")
    if scheme == "tcp":
        host, port = _host_and_port(rest, text)
        if port == 0 or host in ("", "*"):
            raise argparse.ArgumentTypeError(
                f"{text!r} is where a worker would listen: name the host and port to connect to"
            )
    elif not rest or len(rest.encode()) > MAX_IPC_PATH_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r}: an ipc:// path has 1 to {MAX_IPC_PATH_BYTES} bytes")
    return text


def _metrics(text: str) -> MetricsAddress | None:
    if text == "off":
        return None
    host, port = _host_and_port(text, text)
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return MetricsAddress(host, port)
    if host == "localhost":
        return MetricsAddress("127.0.0.1", port)
    raise argparse.ArgumentTypeError(f"{text!r}: the host must be an address, such as 127.0.0.1 or [::1]; or say off")


def _host_and_port(text: str, whole: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{whole!r} needs a port of 0 to 65535 at its end, as in 127.0.0.1:9741")
    if not host or (":" in host and not bracketed):
        raise argparse.ArgumentTypeError(f"{whole!r} needs a host before the port (an IPv6 address in brackets)")
    return host[1:-1] if bracketed else host, int(port)


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
