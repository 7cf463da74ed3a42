# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a configuration, in words that a person can act on, however odd what was found is."""

from __future__ import annotations

import difflib

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from proxyd.config.settings import ENVIRONMENT_PREFIX, TABLE, Setting


MAX_FAULTS: Final = 20  # more are counted, not told: a file of nonsense has thousands
MAX_SHOWN: Final = 60  # letters of what was found there
MAX_REASON: Final = 300
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
        place = ": ".join(cleaned(part, MAX_REASON) for part in (self.source, self.key) if part)
        found = f" = {self.value}" if self.value else ""
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        return f"{place}{found}: {cleaned(self.reason, MAX_REASON)}{allowed}"


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


def cleaned(text: str, most: int = MAX_SHOWN) -> str:
    """Return ``text`` printable, on one line, and of no more than ``most`` letters and three dots."""
    end = "..." if len(text) > most else ""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most]) + end


def nearest(*words: str) -> str | None:
    """Return the name of the setting that was meant by [SECTION,] KEY of a file, or by a variable, so far as one can tell."""
    if words[0].startswith(ENVIRONMENT_PREFIX):
        return _likened(words[0], {text: each.variable for each in TABLE for text in (each.variable, _by_flag(each))})
    # Whoever knows the flag, or the key but not the section, means the same.
    names: dict[str, str] = {}
    for setting in TABLE:
        for text in (setting.path, setting.flag.removeprefix("--").replace("-", "_"), setting.name, setting.key):
            names.setdefault(text, setting.path)
    for setting in TABLE:
        names.setdefault(setting.section, f"[{setting.section}]")
    return names.get(words[-1]) or _likened(".".join(words), names) or _likened(words[-1], names)


def _by_flag(setting: Setting) -> str:
    return f"{ENVIRONMENT_PREFIX}{setting.flag.removeprefix('--').replace('-', '_')}".upper()


def _likened(word: str, names: Mapping[str, str]) -> str | None:
    near = difflib.get_close_matches(word, names, n=1) if len(word) <= MAX_LIKENED else []
    return names[near[0]] if near else None
