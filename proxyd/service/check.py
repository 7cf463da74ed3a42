# SPDX-License-Identifier: Apache-2.0
"""``--check-config``: what a start would find wrong with a configuration that reads well, without a start."""

from __future__ import annotations

import contextlib
import os
import pwd

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from proxyd.errors import StartError
from proxyd.links.curve import curve_of
from proxyd.links.link import Links
from proxyd.service import limits, socketfile


if TYPE_CHECKING:
    from pathlib import Path

    from proxyd.config.settings import Settings
    from proxyd.links.curve import Curve


UNIT_USER: Final = "dsv41-proxyd"  # User= of systemd/dsv41-proxyd.service


def faults_of(settings: Settings) -> list[StartError]:
    """Return what a start would fail of now: all that is found, each thing's first fault."""
    checks: tuple[Callable[[Settings], None], ...] = (_check_links, _check_socket)
    faults = []
    for check in checks:
        try:
            check(settings)
        except StartError as fault:
            faults.append(fault)
    return faults


def links_of(settings: Settings) -> Links:
    """Return the links to the settings' workers, every endpoint checked. Raises StartError."""
    return _checked_links(settings, curve_of(settings))


def _checked_links(settings: Settings, curve: Curve | None) -> Links:
    links = Links(settings.workers[0], curve)
    try:
        for endpoint in settings.workers[1:]:
            links.check(endpoint)
    except BaseException:
        links.close()
        raise
    return links


def _check_links(settings: Settings) -> None:
    limits.check_files()
    with _as_owner(settings.curve_secret_key_file):
        try:
            curve = curve_of(settings)
        except StartError as fault:
            owner = _other_owner(settings.curve_secret_key_file)
            if owner is None:
                raise
            raise StartError(
                f"{fault}; where the daemon runs as that user: sudo -u '#{owner}' dsv41-proxyd --check-config"
            ) from fault
    _checked_links(settings, curve).close()


def _check_socket(settings: Settings) -> None:
    socketfile.check_place(settings.socket)


@contextlib.contextmanager
def _as_owner(secret: Path | None) -> Iterator[None]:
    """
    Where root checks a key that belongs to the unit's user, be that user meanwhile: what it may read is then what counts.

    Nothing is loosened by that: the daemon, which runs as one user, demands what it always does.
    """
    uid = _unit_user_with(secret)
    if uid is None:
        yield
        return
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def _other_owner(secret: Path | None) -> int | None:
    """Return whose key it is, where root checks one that is not root's."""
    try:
        owner = secret.stat().st_uid if secret is not None and os.geteuid() == 0 else 0
    except OSError:
        return None
    return owner or None


def _unit_user_with(secret: Path | None) -> int | None:
    """Return the unit's user where this is root and that user owns ``secret``."""
    if secret is None or os.geteuid() != 0:
        return None
    try:
        uid = pwd.getpwnam(UNIT_USER).pw_uid
        return uid if secret.stat().st_uid == uid else None
    except (KeyError, OSError):
        return None
