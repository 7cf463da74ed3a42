# SPDX-License-Identifier: Apache-2.0
"""
Every setting of the daemon, once. Flags, variables, keys of the file, help, docs/CONFIGURATION.md and reload follow from here.

To add one, add a field of ``Settings`` with its ``At``, and read it where it is needed.
"""

from __future__ import annotations

import dataclasses
import enum

from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

from hostflag.defaults import ENGINE_SOCKET, WORKER_ENDPOINT
from hostflag.logging import FORMATS, LEVELS
from proxyd.config.kinds import Address, Choice, Count, Endpoints, Kind, MetricsAddress, Number, SocketPath
from proxyd.config.peerkinds import GROUPS, USERS, Group, KeyFile, SocketMode


ENVIRONMENT_PREFIX: Final = "DSV41_PROXYD_"


class Effect(enum.Enum):
    """When a changed value counts after a reload."""

    AT_ONCE = "at once"
    NEXT_SESSION = "for new sessions"
    RESTART = "after a restart"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting; ``name`` is its field of ``Settings``, ``help`` a phrase for people."""

    name: str
    section: str
    key: str
    kind: Kind
    default: Any
    effect: Effect
    flag: str
    help: str

    @property
    def path(self) -> str:
        """Its name in the file, and everywhere where it is spoken of."""
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"{ENVIRONMENT_PREFIX}{self.section}_{self.key}".upper()


@dataclasses.dataclass(frozen=True, slots=True)
class At:
    """Where a field of ``Settings`` is set: ``path`` is SECTION.KEY, ``flag`` --NAME-OF-THE-FIELD where nothing else is said."""

    path: str
    kind: Kind
    effect: Effect
    help: str
    flag: str = ""


_METRICS: Final = MetricsAddress("127.0.0.1", 9741)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times carry their unit in the name. ``workers``: the most preferred endpoint first. ``metrics`` None serves none."""

    socket: Annotated[
        Path, At("engine.socket", SocketPath(), Effect.RESTART, "where engines and operators connect")
    ] = Path(ENGINE_SOCKET)
    socket_mode: Annotated[
        int,
        At("engine.socket_mode", SocketMode(), Effect.RESTART, "the socket's mode: who may write to it may connect"),
    ] = 0o660
    socket_group: Annotated[
        str | None, At("engine.socket_group", Group(), Effect.RESTART, "the group that the socket belongs to")
    ] = None
    workers: Annotated[
        tuple[str, ...],
        At(
            "worker.endpoints",
            Endpoints(),
            Effect.AT_ONCE,
            "where the worker is; more than one to fall back on the others, the most preferred first",
            flag="--worker",
        ),
    ] = (WORKER_ENDPOINT,)
    curve_server_key_file: Annotated[
        Path | None,
        At(
            "worker.curve_server_key_file",
            KeyFile(),
            Effect.RESTART,
            "the workers' public key (CURVE); all have the same",
        ),
    ] = None
    curve_secret_key_file: Annotated[
        Path | None,
        At(
            "worker.curve_secret_key_file",
            KeyFile(),
            Effect.RESTART,
            "the daemon's own secret key; goes with the other",
        ),
    ] = None
    network_timeout_ms: Annotated[
        float,
        At(
            "worker.network_timeout_ms",
            Number(1, 60_000, "ms"),
            Effect.NEXT_SESSION,
            "how long a round waits for its reply",
        ),
    ] = 150.0
    breaker_failures: Annotated[
        int,
        At(
            "worker.breaker_failures",
            Count(0, 1000),
            Effect.NEXT_SESSION,
            "so many rounds in a row without a good reply open the circuit breaker, and a lost connection does; 0: never",
        ),
    ] = 3
    breaker_cool_ms: Annotated[
        float,
        At(
            "worker.breaker_cool_ms",
            Number(1, 4000, "ms"),
            Effect.NEXT_SESSION,
            "how long it stays open at first; doubled, up to 4 s, while the worker goes on failing",
        ),
    ] = 500.0
    spin_us: Annotated[
        float,
        At(
            "loop.spin_us",
            Number(0, 10_000, "us"),
            Effect.NEXT_SESSION,
            "the longest spin, while a gather is near and behind a round",
        ),
    ] = 50.0
    nap_us: Annotated[
        float,
        At("loop.nap_us", Number(1, 10_000, "us"), Effect.NEXT_SESSION, "the shortest nap while a gather is far"),
    ] = 20.0
    metrics: Annotated[
        MetricsAddress | None,
        At("metrics.address", Address(), Effect.RESTART, "where /metrics is served; port 0 picks one"),
    ] = _METRICS
    allowed_users: Annotated[
        tuple[str, ...],
        At(
            "security.allowed_users",
            USERS,
            Effect.AT_ONCE,
            "whose engines are taken, beside root's and the daemon's own; with no user and no group: whoever can connect "
            "(a number is never looked up, a name may wait for a directory service)",
        ),
    ] = ()
    allowed_groups: Annotated[
        tuple[str, ...],
        At("security.allowed_groups", GROUPS, Effect.AT_ONCE, "groups whose members' engines are taken"),
    ] = ()
    operator_users: Annotated[
        tuple[str, ...],
        At(
            "security.operator_users",
            USERS,
            Effect.AT_ONCE,
            "who may use dsv41-proxyctl, beside root and the daemon's own user",
        ),
    ] = ()
    log_level: Annotated[str, At("log.level", Choice(LEVELS), Effect.AT_ONCE, "least level that is written")] = "info"
    log_format: Annotated[
        str, At("log.format", Choice(FORMATS), Effect.RESTART, "auto: console on a terminal, else json")
    ] = "auto"


def _table() -> tuple[Setting, ...]:
    hints = get_type_hints(Settings, include_extras=True)
    places = {field.name: (field.default, hints[field.name].__metadata__[0]) for field in dataclasses.fields(Settings)}
    return tuple(_row(name, default, at) for name, (default, at) in places.items())


def _row(name: str, default: Any, at: At) -> Setting:
    section, _, key = at.path.partition(".")
    return Setting(
        name=name,
        section=section,
        key=key,
        kind=at.kind,
        default=default,
        effect=at.effect,
        flag=at.flag or f"--{name.replace('_', '-')}",
        help=at.help,
    )


TABLE: Final = _table()
