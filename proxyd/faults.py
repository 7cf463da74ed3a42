# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a configuration, in words that a person can act on, however odd what was found is."""

from __future__ import annotations

import difflib

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from proxyd.settings import ENVIRONMENT_PREFIX, TABLE


MAX_FAULTS: Final = 20  # more are counted, not told: a file of nonsense has thousands
MAX_SHOWN: Final = 60  # letters of what was found there
MAX_LIKENED: Final = 64  # letters; to compare costs the square of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``source`` is a file, "environment" or "command line"; ``value`` was found at ``key`` there and ``allowed`` would be right."""

    source: str
    reason: str
    key: str = ""
    value: str = ""
    allowed: str = ""

    def __str__(self) -> str:
        place = f"{self.source}: {cleaned(self.key)}" if self.key else self.source
        found = f" = {self.value}" if self.value else ""
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        return f"{place}{found}: {self.reason}{allowed}"


class ConfigurationError(Exception):
    """``faults`` are up to MAX_FAULTS of ``count``. The message has a line for each."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        found = tuple(faults)
        self.count = len(found)
        self.faults = found[:MAX_FAULTS]
        rest = [f"and {self.count - MAX_FAULTS} more"] if self.count > MAX_FAULTS else []
        super().__init__("\n".join([*map(str, self.faults), *rest]))


def shown(value: object) -> str:
    """Return ``value`` for a message: on one line, printable, not too long."""
    try:
        text = "a table" if isinstance(value, dict) else repr(value)
    except (ValueError, RecursionError):  # a whole number of too many digits; arrays within arrays within ...
        text = "something very large"
    return cleaned(text)


def cleaned(text: str) -> str:
    """Return ``text`` printable and not too long."""
    end = "..." if len(text) > MAX_SHOWN else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_SHOWN]) + end


def advice(*words: str) -> str:
    """Return a phrase that names the setting which was meant by a key of the file, so far as one can tell; else nothing."""
    names = {setting.path: setting.path for setting in TABLE}
    # Whoever knows the flag, or the key but not the section, means the same.
    for setting in TABLE:
        names.setdefault(setting.flag.removeprefix("--").replace("-", "_"), setting.path)
        names.setdefault(setting.name, setting.path)
        names.setdefault(setting.key, setting.path)
    last = words[-1]
    return _phrase(names.get(last) or _nearest(".".join(words), names) or _nearest(last, names))


def advice_on_variable(name: str) -> str:
    """Return the same for a name in the environment."""
    variables = {setting.variable: setting.variable for setting in TABLE}
    for setting in TABLE:
        variables.setdefault(f"{ENVIRONMENT_PREFIX}{setting.name}".upper(), setting.variable)
    return _phrase(_nearest(name, variables))


def _nearest(word: str, names: dict[str, str]) -> str | None:
    if len(word) > MAX_LIKENED:
        return None
    near = difflib.get_close_matches(word, names, n=1)
    return names[near[0]] if near else None


def _phrase(name: str | None) -> str:
    return f"; did you mean {name}?" if name else ""
