# SPDX-License-Identifier: Apache-2.0
"""The environment variables of the engine's side: names, what each allows, what it means."""

from __future__ import annotations

import logging
import math
import os

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine_shim import _engine
from engine_shim.mode import Mode
from engine_shim.options import SessionOptions
from hostflag.users import uid_of


PREFIX: Final = "VLLM_DSPARK_REMOTE"
ASYNC: Final = f"{PREFIX}_ASYNC"
PROXY: Final = f"{PREFIX}_ASYNC_PROXY"
SPIN_US: Final = f"{PREFIX}_ASYNC_SPIN_US"
NAP_US: Final = f"{PREFIX}_ASYNC_NAP_US"
RESPAWNS: Final = f"{PREFIX}_ASYNC_RESPAWNS"
RESPAWN_RESET_S: Final = f"{PREFIX}_ASYNC_RESPAWN_RESET_S"
HOSTFLAG_LIB: Final = f"{PREFIX}_HOSTFLAG_LIB"
LIBCUDA: Final = f"{PREFIX}_LIBCUDA"  # read where the driver is opened (cudadriver.py)
COPIES: Final = f"{PREFIX}_COPIES"  # read where a stream is taken (cudastream.py)
SOCKET: Final = f"{PREFIX}_SOCKET"
STRICT_START: Final = f"{PREFIX}_STRICT_START"
DAEMON_USERS: Final = f"{PREFIX}_DAEMON_USERS"
FALSE: Final = frozenset({"", "0"})
MAX_SOCKET_BYTES: Final = 107  # sockaddr_un.sun_path, less the 0 at its end

_log: Final = logging.getLogger(__name__)


def read(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """
    Return the fields of ShimOptions that the environment sets; None reads ``os.environ``. Not set, or empty: not in there.

    Raises ValueError naming variable, value and what is allowed.
    """
    given = os.environ if variables is None else variables
    fields: dict[str, Any] = {"mode": Mode.ASYNC if _flag(given, ASYNC) else Mode.SYNC}
    _check_proxy(given.get(PROXY, ""))
    _check_library(given.get(HOSTFLAG_LIB, ""))
    if socket := given.get(SOCKET):
        fields["socket"] = _socket(socket)
    for name, field, low, high in (
        (SPIN_US, "spin_us", 0.0, 10_000.0),
        (NAP_US, "nap_us", 1.0, 10_000.0),
        (RESPAWN_RESET_S, "respawn_reset_s", 0.001, 31_536_000.0),
    ):
        if text := given.get(name):
            fields[field] = _number(name, text, low, high)
    if text := given.get(RESPAWNS):
        fields["respawns"] = _count(RESPAWNS, text, 1_000_000)
    if STRICT_START in given:
        fields["strict"] = _flag(given, STRICT_START)
    if text := given.get(DAEMON_USERS):
        fields["session"] = SessionOptions(daemon_uids=_users(DAEMON_USERS, text))
    return fields


def _bad(name: str, value: str, allowed: str) -> ValueError:
    return ValueError(f"{name}={value!r}: allowed is {allowed}")


def _flag(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "")
    if value in FALSE:
        return False
    if value == "1":
        return True
    raise _bad(name, value, "0 or 1")


def _check_proxy(value: str) -> None:
    if value not in {"", "daemon"}:
        raise _bad(
            PROXY, value, "only 'daemon': this package starts no proxy of its own, dsv41-proxyd runs as a service"
        )


def _check_library(value: str) -> None:
    """Compatibility: the seed loaded the hand-off from a library of its own. Here it is part of the package."""
    packaged = Path(str(_engine.__file__)).resolve()
    if value and Path(value).resolve() != packaged:
        _log.warning("%s=%r is ignored: the library in use is %s", HOSTFLAG_LIB, value, packaged)


def _socket(value: str) -> Path:
    if not value.startswith("/") or len(os.fsencode(value)) > MAX_SOCKET_BYTES or "\0" in value:
        raise _bad(SOCKET, value, f"an absolute path of at most {MAX_SOCKET_BYTES} bytes")
    return Path(value)


def _number(name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise _bad(name, text, f"a number from {low:g} to {high:g}")
    return value


def _count(name: str, text: str, high: int) -> int:
    # Its length first: of thousands of digits Python makes no number, and says so in words of its own.
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and int(text) <= high):
        raise _bad(name, text, f"a whole number from 0 to {high}")
    return int(text)


def _users(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(uid_of(one.strip()) for one in text.split(","))
    except ValueError as error:
        raise _bad(name, text, f"user names or numbers of this machine, by commas ({error})") from error
