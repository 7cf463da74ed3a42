# SPDX-License-Identifier: Apache-2.0
"""Where endpoints lead: what libzmq is told to connect to. It is told no name, since it would wait for the resolver itself."""

from __future__ import annotations

import re
import socket

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
import zmq

from proxyd.links.endpoints import host_and_port
from proxyd.links.names import MOST_NAMES, Names, UnresolvedError


TCP: Final = "tcp://"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Address:
    """``text`` is an endpoint as well. ``name``: what ``host`` is an address of, where the endpoint has a name."""

    text: str
    ipv6: bool = False
    name: str = ""
    host: str = ""

    def connect(self, dealer: zmq.Socket[Any]) -> None:
        """Raises zmq.ZMQError."""
        # Only there: where it is on, libzmq takes IPv4 for a part of IPv6, which a machine may not have.
        dealer.setsockopt(zmq.IPV6, int(self.ipv6))
        dealer.connect(self.text)

    def blamed(self, reason: str) -> str:
        """Return ``reason`` with the address that it is about: a name may have others, which are sound."""
        return f"{reason} (at {self.text})" if self.name else reason


class Turn:
    """Whose turn it is of an endpoint's addresses: each one's before one has a second, also where their order changes meanwhile."""

    def __init__(self) -> None:
        self._had: set[Address] = set()

    def next(self, found: Sequence[Address]) -> Address:
        """Return one of ``found``, of which there is at least one, the best one first."""
        self._had.intersection_update(found)
        if self._had.issuperset(found):
            self._had.clear()
        address = next(each for each in found if each not in self._had)
        self._had.add(address)
        return address


class Addresses:
    """Finds each endpoint's addresses in ``names``, and writes to the log where there are none."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._said: dict[str, str] = {}  # what the log has of each endpoint's name
        self._log: Any = structlog.get_logger()

    def of(self, endpoint: str) -> Sequence[Address]:
        """Return at least one, the best one first, without waiting. Raises UnresolvedError where a name has none, or none yet."""
        name, port = _name_of(endpoint)
        if name is None:
            return (Address(endpoint, ipv6=endpoint.startswith(f"{TCP}[")),)
        try:
            found = [_address(name, host, port) for host in self._names.addresses(name)]
        except UnresolvedError as fault:
            if not fault.early:
                self._say(endpoint, str(fault))
            raise
        self._said.pop(endpoint, None)
        return found

    def served(self, address: Address) -> None:
        """Take it that a worker has answered there."""
        if address.name:
            self._names.prefer(address.name, address.host)

    def _say(self, endpoint: str, reason: str) -> None:
        if self._said.get(endpoint) == reason:
            return
        if len(self._said) >= MOST_NAMES:
            self._said.clear()
        self._said[endpoint] = reason
        self._log.warning(
            "worker name not resolved", endpoint=endpoint, reason=reason, rate_limited=True, rate_key=endpoint
        )


def check(endpoint: str) -> bool:
    """Return whether ``endpoint`` is by name, whatever that stands for. Raises ValueError where it can be no name of a host."""
    name, _ = _name_of(endpoint)
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is neither an address nor the name of a host")
    return name is not None


def _name_of(endpoint: str) -> tuple[str | None, int]:
    """Return name and port; None where no name is in it."""
    if not endpoint.startswith(TCP):
        return None, 0
    host, port = host_and_port(endpoint.removeprefix(TCP), endpoint)
    bracketed = endpoint.startswith(f"{TCP}[")
    try:
        # %eth0: what a link-local address goes out by.
        socket.inet_pton(*((socket.AF_INET6, host.partition("%")[0]) if bracketed else (socket.AF_INET, host)))
    except (OSError, ValueError):
        return f"[{host}]" if bracketed else host, port
    return None, port


def _address(name: str, host: str, port: int) -> Address:
    ipv6 = ":" in host
    return Address(f"{TCP}[{host}]:{port}" if ipv6 else f"{TCP}{host}:{port}", ipv6, name, host)
