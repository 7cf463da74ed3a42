# SPDX-License-Identifier: Apache-2.0
"""The daemon's configuration: flags before the environment, that before the file, that before defaults; and its reload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from proxyd.config.commandline import CommandLine
from proxyd.config.faults import ConfigurationError
from proxyd.config.settings import TABLE, Effect, Setting, Settings
from proxyd.config.sources import Sources


TAKEN: Final = "taken"
REFUSED: Final = "refused"


@dataclass(frozen=True, slots=True)
class Change:
    """A setting whose value a reload found changed; both values as TOML."""

    setting: Setting
    before: str
    after: str

    @classmethod
    def of(cls, setting: Setting, before: Any, after: Any) -> Change:
        return cls(setting, setting.kind.to_toml(before), setting.kind.to_toml(after))

    def __str__(self) -> str:
        return f"{self.setting.path}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """
    What a reload came to. With ``faults`` nothing was changed.

    ``changed`` counts from now on or from the next session on, as its ``effect`` says; ``restart`` are values that differ from
    those in force and that only a restart will take.
    """

    changed: tuple[Change, ...] = ()
    restart: tuple[Change, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What somebody has to see to, in sentences."""
        refused = [f"the last reload was refused: {fault}" for fault in self.faults]
        return (*refused, *(f"changed in the configuration, but needs a restart: {each}" for each in self.restart))


class Configuration:
    """
    What was read at the start from ``line``, ``environment`` and the file: ``settings`` are those in force.

    ``origins`` says of each setting, by its name, where its value comes from; ``file`` is None where there is none to read.
    Raises ConfigurationError with every fault of all three.
    """

    def __init__(self, line: CommandLine, environment: Mapping[str, str]) -> None:
        self.reloads: dict[str, int] = dict.fromkeys((TAKEN, REFUSED), 0)  # how many, by outcome
        self._line = line
        self._environment = dict(environment)
        read = Sources(line, environment)
        self.settings, self.origins, self.file = read.settings, read.origins, read.file

    def reload(self, apply: Callable[[Settings, frozenset[str]], None]) -> Reloaded:
        """
        Read everything again; ``apply`` gets the settings that are to be in force and the names of those that changed.

        Nothing changes where there is a fault, or where ``apply`` raises, which it may do with ConfigurationError.
        """
        reloaded = self._reloaded(apply)
        self.reloads[REFUSED if reloaded.faults else TAKEN] += 1
        return reloaded

    def _reloaded(self, apply: Callable[[Settings, frozenset[str]], None]) -> Reloaded:
        try:
            read = Sources(self._line, self._environment)
            differing = [setting for setting in TABLE if self._value(setting) != getattr(read.settings, setting.name)]
            taken = {
                each.name: getattr(read.settings, each.name) for each in differing if each.effect is not Effect.RESTART
            }
            settings = replace(self.settings, **taken)
            apply(settings, frozenset(taken))
        except ConfigurationError as error:
            return Reloaded(faults=tuple(str(error).splitlines()))
        changes = [
            Change.of(setting, self._value(setting), getattr(read.settings, setting.name)) for setting in differing
        ]
        kept = {each.name: self.origins[each.name] for each in differing if each.name not in taken}
        self.settings, self.origins, self.file = settings, read.origins | kept, read.file
        return Reloaded(
            changed=tuple(change for change in changes if change.setting.name in taken),
            restart=tuple(change for change in changes if change.setting.name in kept),
        )

    def _value(self, setting: Setting) -> Any:
        return getattr(self.settings, setting.name)
