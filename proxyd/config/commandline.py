# SPDX-License-Identifier: Apache-2.0
"""The daemon's command line: what is to be done, and the settings that were given as flags."""

from __future__ import annotations

import argparse

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hostflag.version import VERSION
from proxyd.config.faults import shown
from proxyd.config.settings import TABLE, Setting


SERVE: Final = "serve"
CHECK: Final = "check"
PRINT: Final = "print"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """``action`` is SERVE, CHECK or PRINT, ``config`` the file that was named; ``flags`` has values by the setting's name."""

    action: str = SERVE
    config: Path | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)


def parse(argv: Sequence[str] | None = None) -> CommandLine:
    """Leaves through ``SystemExit`` (2, with every reason on stderr) where flags are wrong, (0) after help and version."""
    parser = _parser()
    values: dict[str, Any] = vars(parser.parse_args(argv))
    action, config = values.pop("action"), values.pop("config")
    flags: dict[str, Any] = {}
    faults = []
    for setting in TABLE:
        if setting.name in values:
            given = values[setting.name]
            try:
                flags[setting.name] = setting.kind.from_outside(given)
            except ValueError as fault:
                faults.append(f"argument {setting.flag}: {shown(given)}: {fault}; allowed: {setting.kind.allowed}")
    if faults:
        parser.error("\n".join(faults))
    return CommandLine(action=action, config=config, flags=flags)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dsv41-proxyd",
        description="Does the draft rounds of GPU engines: takes their rows from a shared region, gets drafts from a worker.",
        epilog="Flags go before the environment, that before the file, that before defaults. docs/CONFIGURATION.md says more.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="the configuration's file, TOML")
    actions = parser.add_mutually_exclusive_group()
    for action, text in (
        (CHECK, "say ok, or everything that is wrong with the configuration (status 78), and end"),
        (PRINT, "print the configuration as TOML, with where each value comes from, and end"),
    ):
        actions.add_argument(f"--{action}-config", action="store_const", dest="action", const=action, help=text)
    parser.add_argument("--version", action="version", version=f"dsv41-proxyd {VERSION}")
    parser.set_defaults(action=SERVE)
    for setting in TABLE:
        parser.add_argument(
            setting.flag,
            dest=setting.name,
            metavar=setting.kind.metavar,
            action="append" if setting.kind.repeated else "store",
            default=argparse.SUPPRESS,
            help=_help(setting),
        )
    return parser


def _help(setting: Setting) -> str:
    default = setting.kind.to_toml(setting.default).strip('[]"') or "none"
    again = " (may come again)" if setting.kind.repeated else ""
    return f"{setting.help}{again} (default: {default})".replace("%", "%%")
