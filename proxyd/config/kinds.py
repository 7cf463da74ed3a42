# SPDX-License-Identifier: Apache-2.0
"""
What a setting's value may be: read from the text of a flag or variable, or from TOML, checked, and written as TOML again.

Everything here raises ValueError (Unfit, for most) that says what is wrong with a value. What would be right is the kind's ``allowed``.
"""

from __future__ import annotations

import json
import math
import socket

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hostflag.messages import MAX_ENDPOINTS
from proxyd.links.endpoints import checked_endpoint, checked_endpoints, host_and_port


MAX_SOCKET_PATH_BYTES: Final = 107  # sun_path less its NUL
OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where /metrics is served. ``port`` 0 picks a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Unfit(ValueError):
    """A value that a setting cannot have; the message says why, and leaves out the value."""


class Kind(ABC):
    """``metavar`` stands for the value in help, ``allowed`` says in words what it may be."""

    metavar: str
    allowed: str
    repeated = False  # a list: its flag may come more than once, its variable has commas, TOML an array

    @abstractmethod
    def from_text(self, text: str) -> Any:
        """Return the value that ``text``, which is printable, names."""

    def from_outside(self, given: str | list[str]) -> Any:
        """Return the value of a variable, or of a flag: of a list where it came again and again."""
        for text in [given] if isinstance(given, str) else given:
            if not text.isprintable():  # bytes that are no letters, too
                raise Unfit("not printable UTF-8")
        return self.from_text(given) if isinstance(given, str) else self.from_list(given)

    def from_list(self, given: list[str]) -> Any:
        """Return the value of a flag that came again and again: as TOML has it, nothing in it needs commas."""
        return self.from_toml(given)

    def from_toml(self, value: object) -> Any:
        """Return the value that TOML gave. Most kinds are written as a string there."""
        if not isinstance(value, str):
            raise Unfit("not a string")
        if not value.isprintable():
            raise Unfit("not printable")
        return self.from_text(value)

    def to_toml(self, value: Any) -> str:
        """Return what ``from_toml`` would read as ``value``."""
        return quoted(str(value))


@dataclass(frozen=True)
class Number(Kind):
    """A float from ``least`` to ``most``; ``unit`` is for people."""

    least: float
    most: float
    unit: str

    @property
    def metavar(self) -> str:  # type: ignore[override]
        return self.unit.upper()

    @property
    def allowed(self) -> str:  # type: ignore[override]
        return f"a number from {self.least:g} to {self.most:g} {self.unit}"

    def from_text(self, text: str) -> float:
        try:
            return self._checked(float(text))
        except ValueError:
            # Python's own words would speak of floats and literals.
            raise Unfit("not such a number") from None

    def from_toml(self, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unfit("not a number")
        return self._checked(value)

    def to_toml(self, value: float) -> str:
        return repr(float(value))

    def _checked(self, value: float) -> float:
        # Compared before float(), which a whole number of TOML may be too large for. NaN fails both comparisons.
        if not self.least <= value <= self.most or math.isnan(value):
            raise Unfit("out of bounds")
        return float(value)


@dataclass(frozen=True)
class Count(Kind):
    """A whole number from ``least`` to ``most``."""

    least: int
    most: int
    metavar = "N"

    @property
    def allowed(self) -> str:  # type: ignore[override]
        return f"a whole number from {self.least} to {self.most}"

    def from_text(self, text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > len(str(self.most)):
            raise Unfit("not such a number")
        return self.from_toml(int(text))

    def from_toml(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Unfit("not a whole number")
        if not self.least <= value <= self.most:
            raise Unfit("out of bounds")
        return value

    def to_toml(self, value: int) -> str:
        return str(value)


@dataclass(frozen=True)
class Choice(Kind):
    """One of ``choices``."""

    choices: Sequence[str]

    @property
    def metavar(self) -> str:  # type: ignore[override]
        return "|".join(self.choices)

    @property
    def allowed(self) -> str:  # type: ignore[override]
        return f"one of {', '.join(self.choices)}"

    def from_text(self, text: str) -> str:
        if text not in self.choices:
            raise Unfit("no such choice")
        return text


class SocketPath(Kind):
    """Where a Unix socket is: absolute once it is read."""

    metavar = "PATH"
    allowed = f"a path of 1 to {MAX_SOCKET_PATH_BYTES} bytes"

    def from_text(self, text: str) -> Path:
        if not text:
            raise Unfit("a socket needs a path")
        path = Path(text).absolute()
        if text.endswith("/") or path.name in {"", ".", ".."}:
            raise Unfit("a directory, not a socket's path")
        if len(bytes(path)) > MAX_SOCKET_PATH_BYTES:
            raise Unfit(f"longer than the {MAX_SOCKET_PATH_BYTES} bytes that a Unix socket's path may have")
        return path

    def from_toml(self, value: object) -> Path:
        path: Path = super().from_toml(value)
        if str(value)[0] != "/":
            raise Unfit("not absolute: a file does not know where a daemon will be started")
        return path


class Endpoints(Kind):
    """Where workers are, the most preferred one first."""

    metavar = "ENDPOINT"
    allowed = f"1 to {MAX_ENDPOINTS} different ones of tcp://HOST:PORT, ipc://PATH"
    repeated = True

    def from_text(self, text: str) -> tuple[str, ...]:
        return self.from_list([part.strip() for part in text.split(",")])

    def from_list(self, given: list[str]) -> tuple[str, ...]:
        return checked_endpoints([_absolute(checked_endpoint(each)) for each in given])

    def from_toml(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise Unfit("not an array of strings")
        for each in map(checked_endpoint, value):
            if _absolute(each) != each:
                raise Unfit(f"{each!r} is not absolute: a file does not know where a daemon will be started")
        return checked_endpoints(value)

    def to_toml(self, value: Sequence[str]) -> str:
        return f"[{', '.join(map(quoted, value))}]"


class Address(Kind):
    """Where HTTP is served, or None for nowhere. Names are not looked up: a start must not wait for a resolver."""

    metavar = f"HOST:PORT|{OFF}"
    allowed = f"an address and port such as 127.0.0.1:9000, [::1]:9000, localhost:0 (0 picks one); or {OFF}"

    def from_text(self, text: str) -> MetricsAddress | None:
        if text == OFF:
            return None
        host, port = host_and_port(text, text)
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                socket.inet_pton(family, host)
            except (OSError, ValueError):
                continue
            return MetricsAddress(host, port)
        if host == "localhost":
            return MetricsAddress("127.0.0.1", port)
        raise Unfit("the host must be an address")

    def to_toml(self, value: MetricsAddress | None) -> str:
        return quoted(OFF if value is None else str(value))


def _absolute(endpoint: str) -> str:
    """Return an ipc:// endpoint with the whole path, any other as it is: @NAME is no path (an abstract socket)."""
    scheme, _, path = endpoint.partition("://")
    if scheme != "ipc" or path[0] in "/@":
        return endpoint
    return f"ipc://{Path(path).absolute()}"


def quoted(text: str) -> str:
    """Return ``text`` as a TOML basic string."""
    # JSON's escapes are TOML's, but that JSON has none for DEL, and TOML no pairs of surrogates.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
