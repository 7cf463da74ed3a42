# SPDX-License-Identifier: Apache-2.0
"""Settings that say who may come, as kinds: users, groups, files of keys, a socket's mode."""

from __future__ import annotations

import stat

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from hostflag.users import gid_of, uid_of
from proxyd.config.kinds import OFF, Kind, Unfit, quoted


MOST_NAMES: Final = 64
OWNER_RIGHTS: Final = stat.S_IRUSR | stat.S_IWUSR


class Names(Kind):
    """Users or groups, by name or number; kept as they are written. ``find`` raises ValueError for one that is not there."""

    repeated = True

    def __init__(self, what: str, find: Callable[[str], int]) -> None:
        self.metavar = what.upper()
        self.allowed = f"at most {MOST_NAMES} {what}s of this machine, by name or number"
        self._find = find

    def from_text(self, text: str) -> tuple[str, ...]:
        return self._checked([part.strip() for part in text.split(",")] if text.strip() else [])

    def from_toml(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise Unfit("not an array of strings")
        return self._checked(value)

    def to_toml(self, value: Sequence[str]) -> str:
        return f"[{', '.join(map(quoted, value))}]"

    def _checked(self, names: Sequence[str]) -> tuple[str, ...]:
        if list(names) == [""]:  # a flag that says: nobody
            return ()
        if len(names) > MOST_NAMES:
            raise Unfit(f"{len(names)} names")
        for name in names:
            self._find(name)
        return tuple(names)


USERS: Final = Names("user", uid_of)
GROUPS: Final = Names("group", gid_of)


class KeyFile(Kind):
    """The path of a file of keys, or None. It is read at the start only, and never shown."""

    metavar = f"PATH|{OFF}"
    allowed = f"the absolute path of a file that dsv41-proxyctl keygen made; or {OFF}"

    def from_text(self, text: str) -> Path | None:
        if text == OFF:
            return None
        if not text.startswith("/") or "\0" in text:
            raise Unfit("not an absolute path")
        return Path(text)

    def to_toml(self, value: Path | None) -> str:
        return quoted(OFF if value is None else str(value))


class Group(Kind):
    """One group, or None: the daemon's own."""

    metavar = f"GROUP|{OFF}"
    allowed = f"a group of this machine, by name or number; or {OFF} for the daemon's own"

    def from_text(self, text: str) -> str | None:
        if text == OFF:
            return None
        gid_of(text)
        return text

    def to_toml(self, value: str | None) -> str:
        return quoted(OFF if value is None else value)


class SocketMode(Kind):
    """A socket's mode: to connect is to have the right to write."""

    metavar = "MODE"
    allowed = "an octal mode in which the owner may read and write, and nobody may execute, such as 0660 or 0600"

    def from_text(self, text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 4 or set(text) - set("01234567"):
            raise Unfit("not octal")
        mode = int(text, 8)
        if mode & ~0o666 or mode & OWNER_RIGHTS != OWNER_RIGHTS:
            raise Unfit("no such mode for a socket")
        return mode

    def to_toml(self, value: Any) -> str:
        return quoted(f"{value:04o}")
