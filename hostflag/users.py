# SPDX-License-Identifier: Apache-2.0
"""Users and groups as people write them: by name, or by number."""

from __future__ import annotations

import grp
import pwd

from typing import Final


MOST: Final = 2**32 - 2  # -1 is nobody's: to the kernel it means "leave it"

_DIGITS: Final = len(str(MOST))


def uid_of(text: str) -> int:
    """Return a user's number. Raises ValueError where it is neither a number nor a user of this machine."""
    if (number := _number(text)) is not None:
        return number
    try:
        return pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError) as error:
        raise ValueError(f"{text!r} is no user here") from error


def gid_of(text: str) -> int:
    """Return a group's number. Raises ValueError where it is neither a number nor a group of this machine."""
    if (number := _number(text)) is not None:
        return number
    try:
        return grp.getgrnam(text).gr_gid
    except (KeyError, ValueError) as error:
        raise ValueError(f"{text!r} is no group here") from error


def _number(text: str) -> int | None:
    # Its length first: of thousands of digits Python makes no number.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS and int(text) <= MOST else None
