# SPDX-License-Identifier: Apache-2.0
"""Where workers may be: what people write as an endpoint, checked before anything connects to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hostflag.messages import MAX_ENDPOINTS


MAX_IPC_PATH_BYTES: Final = 107
MAX_ENDPOINT_LETTERS: Final = 256  # as much as a message may say


def checked_endpoint(text: str) -> str:
    """Return ``text``. Raises ValueError where no worker can be reached by it, with what to write."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("tcp", "ipc"):
        raise ValueError(f"{text!r} is no endpoint: give tcp://HOST:PORT or ipc://PATH")
    if len(text) > MAX_ENDPOINT_LETTERS or not text.isprintable():
        raise ValueError(f"{text[:40]!r}... is too long for an endpoint, or holds control characters")
    if scheme == "tcp":
        host, port = host_and_port(rest, text)
        if port == 0 or host in ("", "*"):
            raise ValueError(f"{text!r} is where a worker would listen: name the host and port to connect to")
    elif not rest or len(rest.encode()) > MAX_IPC_PATH_BYTES:
        raise ValueError(f"{text!r}: an ipc:// path has 1 to {MAX_IPC_PATH_BYTES} bytes")
    return text


def checked_endpoints(texts: Sequence[str]) -> tuple[str, ...]:
    """Return endpoints in order of preference. Raises ValueError where one is wrong or named twice, or there are too many."""
    endpoints = tuple(checked_endpoint(text) for text in texts)
    if not 1 <= len(endpoints) <= MAX_ENDPOINTS:
        raise ValueError(f"{len(endpoints)} endpoints: give 1 to {MAX_ENDPOINTS}")
    for endpoint in endpoints:
        if endpoints.count(endpoint) > 1:
            raise ValueError(f"{endpoint} is named twice")
    return endpoints


def host_and_port(text: str, whole: str) -> tuple[str, int]:
    """Split HOST:PORT. Raises ValueError, which quotes ``whole``."""
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise ValueError(f"{whole!r} needs a port of 0 to 65535 at its end, as in 127.0.0.1:8080")
    if not host or (":" in host and not bracketed):
        raise ValueError(f"{whole!r} needs a host before the port (an IPv6 address in brackets)")
    return host[1:-1] if bracketed else host, int(port)
