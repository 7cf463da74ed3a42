# SPDX-License-Identifier: Apache-2.0
"""Where values of settings come from: the file, over it the environment, over both the flags; with all that is wrong with any."""

from __future__ import annotations

import re

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from proxyd.config import configfile
from proxyd.config.commandline import CommandLine
from proxyd.config.faults import MAX_FAULTS, ConfigurationError, Fault, nearest, shown
from proxyd.config.settings import ENVIRONMENT_PREFIX, TABLE, Setting, Settings


ENVIRONMENT: Final = "environment"
FILE_VARIABLE: Final = f"{ENVIRONMENT_PREFIX}CONFIG"
# Kubernetes puts these into every container beside a Service that is called dsv41-proxyd.
_SERVICE_LINK: Final = re.compile(
    ENVIRONMENT_PREFIX + r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


class Sources:
    """
    ``settings`` of one reading; ``origins`` says of each, by its name, where its value comes from.

    ``file`` is the path that was read, None where the default one does not exist. Raises ConfigurationError with every fault,
    also of a value that another source goes before.
    """

    def __init__(self, line: CommandLine, environment: Mapping[str, str]) -> None:
        self.origins = {setting.name: "default" for setting in TABLE}
        self._values: dict[str, Any] = {}
        self._faults: list[Fault] = []
        self.file = self._take_file(line.config, environment.get(FILE_VARIABLE))
        self._take_environment(environment)
        for setting in TABLE:
            if setting.name in line.flags:
                self._set(setting, line.flags[setting.name], f"flag {setting.flag}")
        if self._faults:
            raise ConfigurationError(self._faults)
        self.settings = Settings(**self._values)

    def _take_file(self, flag: Path | None, variable: str | None) -> Path | None:
        named = flag if flag is not None else variable
        path = configfile.DEFAULT_FILE if named is None else Path(named).absolute()
        try:
            document = configfile.read(path)
        except FileNotFoundError:
            if named is None:
                return None
            self._faults.append(Fault(source=str(path), reason="there is no such file"))
        except configfile.FileFault as error:
            self._faults.append(error.fault)
        else:
            self._take_document(str(path), document)
        return path

    def _take_document(self, source: str, document: Mapping[str, Any]) -> None:
        settings = {(setting.section, setting.key): setting for setting in TABLE}
        for section, table in document.items():
            if not isinstance(table, dict):
                self._unknown(source, "stands in no [section]", section)
            elif not table and section not in {setting.section for setting in TABLE}:
                self._unknown(source, "unknown section", section)
            else:
                self._take_section(source, section, table, settings)

    def _take_section(
        self, source: str, section: str, table: Mapping[str, Any], settings: Mapping[tuple[str, str], Setting]
    ) -> None:
        for key, value in table.items():
            if setting := settings.get((section, key)):
                self._take(setting, source, setting.path, value, setting.kind.from_toml)
            else:
                self._unknown(source, "unknown key", section, key)

    def _take_environment(self, environment: Mapping[str, str]) -> None:
        settings = {setting.variable: setting for setting in TABLE}
        for name, text in environment.items():
            if setting := settings.get(name):
                self._take(setting, ENVIRONMENT, name, text, setting.kind.from_outside)
            elif name.startswith(ENVIRONMENT_PREFIX) and name != FILE_VARIABLE and not _SERVICE_LINK.fullmatch(name):
                self._unknown(ENVIRONMENT, "unknown variable", name)

    def _take(self, setting: Setting, source: str, key: str, value: Any, convert: Callable[[Any], Any]) -> None:
        try:
            self._set(setting, convert(value), f"{source} {key}" if source == ENVIRONMENT else source)
        except ValueError as fault:
            self._faults.append(
                Fault(source=source, key=key, value=shown(value), reason=str(fault), allowed=setting.kind.allowed)
            )

    def _unknown(self, source: str, what: str, *words: str) -> None:
        """Refuse what has no setting. Its value is not told: it may be a secret that was meant for something else."""
        # To look for what was meant takes time, and only the first faults are told.
        meant = nearest(*words) if len(self._faults) < MAX_FAULTS else None
        reason = f"{what}; did you mean {meant}?" if meant else what
        self._faults.append(Fault(source=source, key=".".join(words), reason=reason))

    def _set(self, setting: Setting, value: Any, origin: str) -> None:
        self._values[setting.name] = value
        self.origins[setting.name] = origin
